package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// dump writes what the rules recorded as OpenMetrics with timestamps, as `promtool tsdb create-blocks-from openmetrics`
// takes it. The format has no staleness markers: a series there just ends.
func (e *evaluation) dump(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	querier, err := e.db.Querier(e.start, e.end)
	if err != nil {
		return err
	}
	defer querier.Close()
	for _, name := range e.recordedNames() {
		fmt.Fprintf(out, "# TYPE %s gauge\n", name)
		set := querier.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name))
		for set.Next() {
			one := set.At()
			text := exposition(one.Labels())
			samples := one.Iterator(nil)
			for samples.Next() == chunkenc.ValFloat {
				at, v := samples.At()
				if !value.IsStaleNaN(v) {
					fmt.Fprintf(out, "%s %s %s\n", text, number(v), strconv.FormatFloat(float64(at)/1000, 'f', 3, 64))
				}
			}
			if err := samples.Err(); err != nil {
				return err
			}
		}
		if err := set.Err(); err != nil {
			return err
		}
	}
	fmt.Fprint(out, "# EOF\n")
	return out.Flush()
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func exposition(series labels.Labels) string {
	var parts []string
	series.Range(func(l labels.Label) {
		if l.Name != labels.MetricName {
			parts = append(parts, l.Name+`="`+escape.Replace(l.Value)+`"`)
		}
	})
	return series.Get(labels.MetricName) + "{" + strings.Join(parts, ",") + "}"
}

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
