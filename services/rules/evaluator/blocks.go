package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// synthetic is a history that nobody recorded: so many series from start to end (ms since the epoch, the end not
// included), a sample of each every step, in blocks of a range as a Prometheus or Thanos' compactor cuts them.
type synthetic struct {
	folder                   string
	start, end, step, blocks int64
	series                   int
	seed                     uint64
}

// The shapes that DCGM's readings have, and that decide how well they compress: noise with three decimals, a whole
// number that wanders, a counter, a value that hardly ever changes.
var shapes = []struct {
	metric string
	next   func(random *rand.Rand, last float64, hour float64) float64
}{
	{"DCGM_FI_DEV_POWER_USAGE", func(random *rand.Rand, last, hour float64) float64 {
		busy := 380 + 120*math.Sin(hour*math.Pi/12)
		return math.Round((last+0.2*(busy-last)+6*random.NormFloat64())*1000) / 1000
	}},
	{"DCGM_FI_DEV_GPU_TEMP", func(random *rand.Rand, last, hour float64) float64 {
		if random.IntN(4) > 0 {
			return last
		}
		return math.Min(85, math.Max(30, last+float64(random.IntN(3)-1)))
	}},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", func(random *rand.Rand, last, _ float64) float64 {
		return last + math.Round(18e6+3e6*random.Float64()) // mJ in a minute at 300 to 350 W
	}},
	{"DCGM_FI_DEV_SM_CLOCK", func(random *rand.Rand, last, _ float64) float64 {
		if random.IntN(500) > 0 {
			return last
		}
		return 1410 - 15*float64(random.IntN(8))
	}},
}

var begins = []float64{300, 50, 0, 1410}

func writeBlocks(args []string) error {
	flags := flag.NewFlagSet("blocks", flag.ContinueOnError)
	made := synthetic{}
	flags.Int64Var(&made.start, "start", 0, "first moment, ms since the epoch")
	flags.Int64Var(&made.end, "end", 0, "the moment behind the last, ms since the epoch")
	flags.IntVar(&made.series, "series", 100, "how many series")
	flags.Uint64Var(&made.seed, "seed", 7, "what the values are drawn from")
	flags.Int64Var(&made.step, "step", 60_000, "ms from one sample of a series to the next")
	flags.Int64Var(&made.blocks, "block", 48*3_600_000, "range of one, ms, at whose multiples they are cut")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || made.series < 1 || made.step < 1 || made.blocks < made.step || made.end <= made.start {
		return errors.New("usage: evaluator blocks -start MS -end MS [-series N] [-step MS] [-block MS] FOLDER")
	}
	made.folder = flags.Arg(0)
	return made.write(context.Background(), os.Stdout)
}

// write makes the blocks, one after the other, and tells for each how many samples it has and their sum by metric.
func (s synthetic) write(ctx context.Context, out io.Writer) error {
	random := rand.New(rand.NewPCG(s.seed, 0))
	names, refs, last := make([]labels.Labels, s.series), make([]storage.SeriesRef, s.series), make([]float64, s.series)
	for i := range names {
		gpu := i / len(shapes)
		node := fmt.Sprintf("n%04d", gpu/8)
		names[i] = labels.FromStrings(
			labels.MetricName, shapes[i%len(shapes)].metric, "cluster", "synthetic", "Hostname", node,
			"instance", node+":9400", "job", "dcgm-exporter", "gpu", fmt.Sprint(gpu%8),
		)
		last[i] = begins[i%len(shapes)]
	}
	for from := s.start; from < s.end; {
		to := min(s.end, (from/s.blocks+1)*s.blocks)
		clear(refs)
		sums, count := make([]float64, len(shapes)), 0
		id, err := block(ctx, s.folder, s.blocks, func(appender storage.Appender) error {
			for at := from; at < to; at += s.step {
				hour := float64(at) / 3_600_000
				for i := range names {
					last[i] = shapes[i%len(shapes)].next(random, last[i], hour)
					sums[i%len(shapes)] += last[i]
					var err error
					if refs[i], err = appender.Append(refs[i], names[i], at, last[i]); err != nil {
						return err
					}
					count++
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, `{"block": "%s", "start": %d, "end": %d, "samples": %d, "sums": {`, id, from, to, count)
		for i, shape := range shapes {
			if i > 0 {
				fmt.Fprint(out, ", ")
			}
			fmt.Fprintf(out, `"%s": %s`, shape.metric, number(sums[i]))
		}
		fmt.Fprintln(out, "}}")
		from = to
	}
	return nil
}

// block makes one of what `fill` appends, all of it within a range (ms), and returns its id; of nothing it makes none.
func block(ctx context.Context, folder string, size int64, fill func(storage.Appender) error) (string, error) {
	// Twice its size: a writer refuses what is older than its newest sample by more than half of it.
	writer, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), folder, 2*size)
	if err != nil {
		return "", err
	}
	appender := writer.Appender(ctx)
	if err := fill(appender); err != nil {
		return "", errors.Join(err, writer.Close())
	}
	if err := appender.Commit(); err != nil {
		return "", errors.Join(err, writer.Close())
	}
	id, err := writer.Flush(ctx)
	return id.String(), errors.Join(err, writer.Close())
}
