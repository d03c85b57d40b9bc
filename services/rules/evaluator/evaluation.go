package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// stretch is how long (ms) rules are evaluated over at once: the longer, the less often series are looked for. What they
// write is as far behind what has been fed, of which the head takes an hour.
const stretch = 30 * 60 * 1000

// evaluation is one run: a TSDB in a temporary folder, the groups, of one rule each, and the state each alert was last
// seen in.
type evaluation struct {
	out        *bufio.Writer
	folder     string
	db         *tsdb.DB
	engine     *promql.Engine
	groups     []*rules.Group
	next       []time.Time
	start, end int64
	until      int64 // evaluated up to then

	series   []series
	appender storage.Appender

	turns    []turn
	ahead    *ahead
	wants    *wants
	states   map[*rules.AlertingRule]map[uint64]seen
	changes  []change
	failures map[string]int
	samples  int
	refused  int
	rounds   int
}

// change is a line about an alert that has changed its state.
type change struct {
	at    int64
	group int
	line  map[string]any
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
	}, nil
}

func (e *evaluation) close() {
	_ = e.db.Close()
	_ = os.RemoveAll(e.folder)
}

func (e *evaluation) options() *rules.ManagerOptions {
	return &rules.ManagerOptions{
		QueryFunc: func(ctx context.Context, query string, at time.Time) (promql.Vector, error) {
			return e.ahead.answer(ctx, query, at)
		},
		Appendable: e.db,
		Queryable:  e.db,
		Context:    context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     slog.New(slog.DiscardHandler),
	}
}

// begin sets each group on its first moment.
func (e *evaluation) begin(evaluated span, wants *wants) {
	e.until, e.end = e.start, evaluated.end
	e.ahead, e.wants, e.turns = &ahead{e: e}, wants, turns(e.groups)
	for _, group := range e.groups {
		e.next = append(e.next, time.UnixMilli(evaluated.firsts[group]).UTC())
		if alerting, ok := ruleOf(group).(*rules.AlertingRule); ok {
			// There is no earlier state to restore; without this ALERTS would not be written.
			alerting.SetRestored(true)
			e.states[alerting] = map[uint64]seen{}
		}
	}
}

// allFed takes note that all samples up to `upTo` (ms) have been fed, and evaluates over whole stretches.
func (e *evaluation) allFed(ctx context.Context, upTo int64) error {
	if err := e.commit(); err != nil || upTo < e.until+stretch {
		return err
	}
	e.evaluateUntil(ctx, upTo)
	return e.out.Flush()
}

func (e *evaluation) commit() error {
	if e.appender == nil {
		return nil
	}
	appender := e.appender
	e.appender = nil
	return appender.Commit()
}

// evaluateUntil evaluates every group at each of its moments up to `upTo` (ms).
func (e *evaluation) evaluateUntil(ctx context.Context, upTo int64) {
	e.until = upTo
	for _, turn := range e.turns {
		e.evaluateTurn(ctx, turn, min(upTo, e.end))
	}
	slices.SortStableFunc(e.changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.group, b.group))
	})
	for _, one := range e.changes {
		e.say(one.line)
	}
	e.changes = nil
}

// evaluateTurn evaluates the groups of a turn at their moments up to `upTo` (ms), in order of time, then of the files.
func (e *evaluation) evaluateTurn(ctx context.Context, those turn, upTo int64) {
	e.ahead.ask(ctx, those, upTo)
	for {
		which := -1
		for _, i := range those {
			if at := e.next[i]; at.UnixMilli() <= upTo && (which < 0 || at.Before(e.next[which])) {
				which = i
			}
		}
		if which < 0 {
			return
		}
		e.ahead.group = e.groups[which]
		e.groups[which].Eval(ctx, e.next[which])
		e.rounds++
		e.note(which, e.next[which])
		e.next[which] = e.next[which].Add(e.groups[which].Interval())
	}
}

// note takes down which alerts have changed their state.
func (e *evaluation) note(which int, at time.Time) {
	group := e.groups[which]
	rule := ruleOf(group)
	if err := rule.LastError(); err != nil {
		if e.failures[rule.Name()]++; e.failures[rule.Name()] == 1 {
			e.say(map[string]any{"kind": "error", "rule": rule.Name(), "at": at.UnixMilli(), "message": err.Error()})
		}
	}
	alerting, ok := rule.(*rules.AlertingRule)
	if !ok {
		return
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
		e.changes = append(e.changes, change{at.UnixMilli(), which, map[string]any{
			"kind": "alert", "state": alert.State.String(), "at": at.UnixMilli(), "active_at": alert.ActiveAt.UnixMilli(),
			"labels": alert.Labels.Map(), "annotations": alert.Annotations.Map(), "group": group.Name(),
		}})
	}
	e.over(before, now, which, at)
	e.states[alerting] = now
}

// over takes down the alerts that are no longer active: resolved if they fired, cleared if they never did.
func (e *evaluation) over(before, now map[uint64]seen, which int, at time.Time) {
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
		e.changes = append(e.changes, change{at.UnixMilli(), which, map[string]any{
			"kind": "alert", "state": state, "at": at.UnixMilli(), "active_at": was.activeAt.UnixMilli(),
			"labels": was.labels.Map(), "annotations": map[string]string{}, "group": e.groups[which].Name(),
		}})
	}
}

func (e *evaluation) finish() error {
	e.say(map[string]any{
		"kind": "end", "samples": e.samples, "refused": e.refused, "series": len(e.series), "rounds": e.rounds,
		"failures": e.failures,
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
