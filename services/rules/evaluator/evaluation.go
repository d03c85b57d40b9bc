package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sort"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// evaluation is one run: a TSDB in a temporary folder, the groups, and the state each alert was last seen in.
type evaluation struct {
	out        *bufio.Writer
	folder     string
	db         *tsdb.DB
	engine     *promql.Engine
	groups     []*rules.Group
	next       []time.Time
	start, end int64

	series   []series
	appender storage.Appender

	states   map[*rules.AlertingRule]map[uint64]seen
	failures map[string]int
	// Wall seconds by rule: which ones a Prometheus would labour at.
	seconds map[string]float64
	samples int
	refused int
	rounds  int
}

type seen struct {
	state    rules.AlertState
	labels   labels.Labels
	activeAt time.Time
}

func newEvaluation(out *bufio.Writer, start, end int64, lookback time.Duration) (*evaluation, error) {
	folder, err := os.MkdirTemp("", "hindcast-rules-")
	if err != nil {
		return nil, err
	}
	options := tsdb.DefaultOptions()
	options.WALSegmentSize = -1 // nothing is to survive this process
	options.RetentionDuration = 0
	quiet := slog.New(slog.DiscardHandler)
	db, err := tsdb.Open(folder, quiet, nil, options, nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	engine := promql.NewEngine(promql.EngineOpts{
		Logger:        quiet,
		MaxSamples:    50_000_000,
		Timeout:       10 * time.Minute,
		LookbackDelta: lookback,
		// As Prometheus' own main does.
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		Parser:                   parser.NewParser(parser.Options{}),
	})
	return &evaluation{
		out: out, folder: folder, db: db, engine: engine, start: start, end: end,
		states: map[*rules.AlertingRule]map[uint64]seen{}, failures: map[string]int{},
		seconds: map[string]float64{},
	}, nil
}

func (e *evaluation) close() {
	_ = e.db.Close()
	_ = os.RemoveAll(e.folder)
}

func (e *evaluation) options() *rules.ManagerOptions {
	return &rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(e.engine, e.db),
		Appendable: e.db,
		Queryable:  e.db,
		Context:    context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     slog.New(slog.DiscardHandler),
	}
}

// begin sets each group on its first moment.
func (e *evaluation) begin(evaluated span) {
	e.end = evaluated.end
	for _, group := range e.groups {
		e.next = append(e.next, time.UnixMilli(evaluated.firsts[group]).UTC())
		for _, rule := range group.Rules() {
			if alerting, ok := rule.(*rules.AlertingRule); ok {
				// There is no earlier state to restore; without this ALERTS would not be written.
				alerting.SetRestored(true)
				e.states[alerting] = map[uint64]seen{}
			}
		}
	}
}

// evaluateUntil evaluates every group at each of its moments up to `upTo` (ms), in order of time, then of the files.
func (e *evaluation) evaluateUntil(ctx context.Context, upTo int64) error {
	if e.appender != nil {
		if err := e.appender.Commit(); err != nil {
			return err
		}
		e.appender = nil
	}
	for {
		which := -1
		for i, at := range e.next {
			if at.UnixMilli() <= min(upTo, e.end) && (which < 0 || at.Before(e.next[which])) {
				which = i
			}
		}
		if which < 0 {
			e.say(map[string]any{"kind": "progress", "at": upTo})
			return e.out.Flush()
		}
		at := e.next[which]
		e.groups[which].Eval(ctx, at)
		e.rounds++
		e.told(e.groups[which], at)
		e.next[which] = at.Add(e.groups[which].Interval())
	}
}

// told says which alerts have changed their state.
func (e *evaluation) told(group *rules.Group, at time.Time) {
	for _, rule := range group.Rules() {
		e.seconds[rule.Name()] += rule.GetEvaluationDuration().Seconds()
		if err := rule.LastError(); err != nil {
			if e.failures[rule.Name()]++; e.failures[rule.Name()] == 1 {
				e.say(map[string]any{"kind": "error", "rule": rule.Name(), "at": at.UnixMilli(), "message": err.Error()})
			}
		}
		alerting, ok := rule.(*rules.AlertingRule)
		if !ok {
			continue
		}
		before, now := e.states[alerting], map[uint64]seen{}
		var changed []*rules.Alert
		alerting.ForEachActiveAlert(func(alert *rules.Alert) {
			key := alert.Labels.Hash()
			if alert.State == rules.StateInactive {
				return
			}
			now[key] = seen{alert.State, alert.Labels, alert.ActiveAt}
			if before[key].state != alert.State || !before[key].activeAt.Equal(alert.ActiveAt) {
				changed = append(changed, alert)
			}
		})
		sort.Slice(changed, func(i, j int) bool { return labels.Compare(changed[i].Labels, changed[j].Labels) < 0 })
		for _, alert := range changed {
			e.say(map[string]any{
				"kind": "alert", "state": alert.State.String(), "at": at.UnixMilli(), "active_at": alert.ActiveAt.UnixMilli(),
				"labels": alert.Labels.Map(), "annotations": alert.Annotations.Map(), "group": group.Name(),
			})
		}
		e.over(before, now, group, at)
		e.states[alerting] = now
	}
}

// over says of alerts that are no longer active: resolved if they fired, cleared if they never did.
func (e *evaluation) over(before, now map[uint64]seen, group *rules.Group, at time.Time) {
	var gone []seen
	for key, was := range before {
		if _, still := now[key]; !still {
			gone = append(gone, was)
		}
	}
	sort.Slice(gone, func(i, j int) bool { return labels.Compare(gone[i].labels, gone[j].labels) < 0 })
	for _, was := range gone {
		state := "cleared"
		if was.state == rules.StateFiring {
			state = "resolved"
		}
		e.say(map[string]any{
			"kind": "alert", "state": state, "at": at.UnixMilli(), "active_at": was.activeAt.UnixMilli(),
			"labels": was.labels.Map(), "annotations": map[string]string{}, "group": group.Name(),
		})
	}
}

func (e *evaluation) finish() error {
	e.say(map[string]any{
		"kind": "end", "samples": e.samples, "refused": e.refused, "series": len(e.series), "rounds": e.rounds,
		"failures": e.failures, "seconds": e.seconds,
	})
	return e.out.Flush()
}

func (e *evaluation) say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		// A map of strings and numbers always marshals.
		panic(err)
	}
	_, _ = e.out.Write(append(text, '\n'))
}
