package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"sort"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Written at once: servers take no series an hour behind the others.
const recordedWindowMS = 300_000

// recordedNames returns the metrics that rules write, sorted.
func (e *evaluation) recordedNames() []string {
	names := map[string]bool{}
	for _, group := range e.groups {
		for _, name := range writes(ruleOf(group)) {
			names[name] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	sort.Strings(sorted)
	return sorted
}

// kept is where what the rules recorded goes: `shift` ms later than in the recording, as of the replay `as` if one is named.
type kept struct {
	shift int64
	as    string
}

// each visits, by metric and labels, the samples that a series has from `begin` to `until` (ms, both included).
func (k kept) each(e *evaluation, begin, until int64, visit func(series labels.Labels, times []int64, values []float64) error) error {
	querier, err := e.db.Querier(begin, until)
	if err != nil {
		return err
	}
	defer querier.Close()
	for _, name := range e.recordedNames() {
		matcher := labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name)
		set := querier.Select(context.Background(), true, nil, matcher)
		for set.Next() {
			var times []int64
			var values []float64
			samples := set.At().Iterator(nil)
			for samples.Next() == chunkenc.ValFloat {
				if at, v := samples.At(); begin <= at && at <= until {
					times, values = append(times, at+k.shift), append(values, v)
				}
			}
			if err := samples.Err(); err != nil {
				return err
			}
			series := set.At().Labels()
			if k.as != "" {
				series = labels.NewBuilder(series).Set("replay", k.as).Labels()
			}
			if len(times) == 0 {
				continue
			}
			if err := visit(series, times, values); err != nil {
				return err
			}
		}
		if err := set.Err(); err != nil {
			return err
		}
	}
	return nil
}

// write writes what the rules recorded, staleness markers included, as frames like those of the feed (frames.go): in
// each window of time new series (L), the samples of one series at a time (S), and how far that is (W); at last E.
func (k kept) write(e *evaluation, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := &recordedWriter{Writer: bufio.NewWriter(file), numbers: map[uint64]uint32{}}
	for begin := e.start; begin <= e.end; begin += recordedWindowMS {
		until := min(begin+recordedWindowMS-1, e.end)
		if err := k.each(e, begin, until, out.series); err != nil {
			return err
		}
		out.frame('W', binary.LittleEndian.AppendUint64(nil, uint64(until+k.shift)))
	}
	out.frame('E', nil)
	return out.Flush()
}

// blocks writes the same as blocks of Prometheus' TSDB, of two hours each as a Prometheus cuts them, so that a Thanos and
// a Mimir take them.
func (k kept) blocks(e *evaluation, folder string) error {
	ctx := context.Background()
	for from := e.start + k.shift; from <= e.end+k.shift; {
		to := min(e.end+k.shift+1, (from/tsdb.DefaultBlockDuration+1)*tsdb.DefaultBlockDuration)
		_, err := block(ctx, folder, tsdb.DefaultBlockDuration, func(out storage.Appender) error {
			return k.each(e, from-k.shift, to-1-k.shift, func(series labels.Labels, times []int64, values []float64) error {
				var ref storage.SeriesRef
				for i, at := range times {
					var err error
					if ref, err = out.Append(ref, series, at, values[i]); err != nil {
						return err
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}

type recordedWriter struct {
	*bufio.Writer
	numbers map[uint64]uint32
}

func (w *recordedWriter) series(series labels.Labels, at []int64, v []float64) error {
	var times, values []byte
	for i := range at {
		times = binary.LittleEndian.AppendUint64(times, uint64(at[i]))
		values = binary.LittleEndian.AppendUint64(values, math.Float64bits(v[i]))
	}
	key := series.Hash()
	number, known := w.numbers[key]
	if !known {
		number = uint32(len(w.numbers))
		w.numbers[key] = number
		text, err := json.Marshal([]map[string]string{series.Map()})
		if err != nil {
			return err
		}
		w.frame('L', text)
	}
	payload := binary.LittleEndian.AppendUint32(nil, 1)
	payload = binary.LittleEndian.AppendUint32(payload, uint32(len(times)/8))
	payload = binary.LittleEndian.AppendUint32(payload, number)
	w.frame('S', append(append(payload, times...), values...))
	return nil
}

// frame writes one frame; a failure is kept by the writer and told by Flush.
func (w *recordedWriter) frame(kind byte, payload []byte) {
	_ = w.WriteByte(kind)
	_, _ = w.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))))
	_, _ = w.Write(payload)
}
