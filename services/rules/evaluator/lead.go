package main

import (
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// window is a stretch of time, in ms, both ends included.
type window struct{ start, end int64 }

// reach is how far back a rule looks at what other rules have written under the names that match.
type reach struct {
	selector *parser.VectorSelector
	back     time.Duration
}

// leads returns how long before a moment each group must have been evaluated for all alerts to be in their states at it:
// an alert for as long as it waits and keeps firing, what a rule writes for as long as others look back at it, and so
// on. False where that cannot be told.
func leads(groups []*rules.Group, lookback time.Duration) (map[*rules.Group]time.Duration, bool) {
	type ruled struct {
		group   *rules.Group
		reaches []reach
		lead    time.Duration
	}
	var all []*ruled
	for _, group := range groups {
		found := &ruled{group: group}
		if alerting, ok := ruleOf(group).(*rules.AlertingRule); ok {
			found.lead = alerting.HoldDuration() + alerting.KeepFiringFor() + group.Interval()
		}
		var ok bool
		if found.reaches, ok = reachesOf(group, lookback); !ok {
			return nil, false
		}
		all = append(all, found)
	}
	for range len(all) + 1 {
		changed := false
		for _, user := range all {
			for _, reach := range user.reaches {
				for _, writer := range all {
					if lead := user.lead + reach.back + writer.group.Interval(); lead > writer.lead && reach.sees(writes(ruleOf(writer.group))) {
						writer.lead, changed = lead, true
					}
				}
			}
		}
		if !changed {
			found := map[*rules.Group]time.Duration{}
			for _, one := range all {
				found[one.group] = one.lead
			}
			return found, true
		}
	}
	return nil, false // a rule that looks back at itself
}

// reachesOf returns how far back a group's rule looks at what. False where that depends on no moment of its evaluation.
func reachesOf(group *rules.Group, lookback time.Duration) ([]reach, bool) {
	return reachesIn(ruleOf(group).Query(), group.QueryOffset(), lookback)
}

func reachesIn(expr parser.Expr, offset, lookback time.Duration) ([]reach, bool) {
	var found []reach
	known := true
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		back, ranged := offset+selector.OriginalOffset, false
		known = known && selector.Timestamp == nil && selector.StartOrEnd == 0
		for _, above := range path {
			switch above := above.(type) {
			case *parser.MatrixSelector:
				back, ranged = back+above.Range, true
			case *parser.SubqueryExpr:
				back += above.Range + above.OriginalOffset
				known = known && above.Timestamp == nil && above.StartOrEnd == 0
			}
		}
		if !ranged {
			back += lookback
		}
		found = append(found, reach{selector, back})
		return nil
	})
	return found, known
}

func (r reach) sees(names []string) bool {
	for _, name := range names {
		seen := true
		for _, matcher := range r.selector.LabelMatchers {
			seen = seen && (matcher.Name != labels.MetricName || matcher.Matches(name))
		}
		if seen {
			return true
		}
	}
	return false
}

// span is what is evaluated: each group from its first moment on (ms), and all of them until the end.
type span struct {
	firsts map[*rules.Group]int64
	end    int64
}

// spanOf returns what can matter for what happens within a window, the whole where none is given: groups begin as late
// as gives the same, and end when every alert that waits at the window's end has fired or cleared.
func spanOf(groups []*rules.Group, whole, within window, lookback time.Duration) span {
	found := span{firsts: map[*rules.Group]int64{}, end: whole.end}
	// On the multiples of their intervals. A running Prometheus shifts each group by a hash of its file's path, which
	// would make the result depend on where the files lie.
	for _, group := range groups {
		interval := group.Interval().Milliseconds()
		found.firsts[group] = (whole.start + interval - 1) / interval * interval
	}
	if within.end == 0 {
		return found
	}
	longest := time.Duration(0)
	for _, group := range groups {
		if alerting, ok := ruleOf(group).(*rules.AlertingRule); ok {
			longest = max(longest, alerting.HoldDuration()+2*group.Interval())
		}
	}
	found.end = min(found.end, within.end+longest.Milliseconds())
	lead, known := leads(groups, lookback)
	// A query in a template may look back at anything.
	if !known || asksInTemplates(groups) {
		return found
	}
	for _, group := range groups {
		interval := group.Interval().Milliseconds()
		first := (within.start - lead[group].Milliseconds()) / interval * interval
		found.firsts[group] = max(found.firsts[group], first)
	}
	return found
}
