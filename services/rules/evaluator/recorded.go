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
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Written at once: servers take no series an hour behind the others.
const recordedWindowMS = 300_000

// recordedNames returns the metrics that rules write, sorted.
func (e *evaluation) recordedNames() []string {
	names := map[string]bool{"ALERTS": true, "ALERTS_FOR_STATE": true}
	for _, group := range e.groups {
		for _, rule := range group.Rules() {
			if _, ok := rule.(*rules.RecordingRule); ok {
				names[rule.Name()] = true
			}
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	sort.Strings(sorted)
	return sorted
}

// write writes what the rules recorded, staleness markers included, as frames like those of the feed (frames.go): in
// each window of time new series (L), the samples of one series at a time (S), and how far that is (W); at last E.
func (e *evaluation) write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := &recordedWriter{Writer: bufio.NewWriter(file), numbers: map[uint64]uint32{}}
	names := e.recordedNames()
	for begin := e.start; begin <= e.end; begin += recordedWindowMS {
		until := min(begin+recordedWindowMS-1, e.end)
		querier, err := e.db.Querier(begin, until)
		if err != nil {
			return err
		}
		for _, name := range names {
			matcher := labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name)
			set := querier.Select(context.Background(), true, nil, matcher)
			for set.Next() {
				if err := out.series(set.At(), begin, until); err != nil {
					return err
				}
			}
			if err := set.Err(); err != nil {
				return err
			}
		}
		if err := querier.Close(); err != nil {
			return err
		}
		out.frame('W', binary.LittleEndian.AppendUint64(nil, uint64(until)))
	}
	out.frame('E', nil)
	return out.Flush()
}

type recordedWriter struct {
	*bufio.Writer
	numbers map[uint64]uint32
}

func (w *recordedWriter) series(one storage.Series, begin, until int64) error {
	var times, values []byte
	samples := one.Iterator(nil)
	for samples.Next() == chunkenc.ValFloat {
		at, v := samples.At()
		if begin <= at && at <= until {
			times = binary.LittleEndian.AppendUint64(times, uint64(at))
			values = binary.LittleEndian.AppendUint64(values, math.Float64bits(v))
		}
	}
	if err := samples.Err(); err != nil || len(times) == 0 {
		return err
	}
	key := one.Labels().Hash()
	number, known := w.numbers[key]
	if !known {
		number = uint32(len(w.numbers))
		w.numbers[key] = number
		text, err := json.Marshal([]map[string]string{one.Labels().Map()})
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
