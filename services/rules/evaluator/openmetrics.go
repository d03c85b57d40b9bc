package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
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
	metric := ""
	err = kept{}.each(e, e.start, e.end, func(series labels.Labels, times []int64, values []float64) error {
		if name := series.Get(labels.MetricName); name != metric {
			metric = name
			fmt.Fprintf(out, "# TYPE %s gauge\n", name)
		}
		text := exposition(series)
		for i, at := range times {
			if !value.IsStaleNaN(values[i]) {
				fmt.Fprintf(out, "%s %s %s\n", text, number(values[i]), strconv.FormatFloat(float64(at)/1000, 'f', 3, 64))
			}
		}
		return nil
	})
	if err != nil {
		return err
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
