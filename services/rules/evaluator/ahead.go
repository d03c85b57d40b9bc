package main

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// ahead answers rules' queries. One range query over all moments of a stretch finds its series once, where instant
// queries would find them at each; it gives the same, as a query looks at nothing that is later than its moment.
type ahead struct {
	e *evaluation
	// The group that is evaluated, and what its query gives, by moment (ms).
	group   *rules.Group
	answers map[*rules.Group]map[int64]promql.Vector
}

// Aggregations whose last digit depends on the order of what they are of, or which take some of what is equal.
var orderMatters = []parser.ItemType{
	parser.SUM, parser.AVG, parser.STDDEV, parser.STDVAR, parser.TOPK, parser.BOTTOMK, parser.LIMITK,
}

// inOrder returns whether a range query gives the same each time: the engine collects what operators and most functions
// give over a range in a map, in no order.
func inOrder(expr parser.Expr) bool {
	found := true
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		call, _ := node.(*parser.Call)
		_, operator := node.(*parser.BinaryExpr)
		if operator || (call != nil && !slices.Contains(keepOrder, call.Func.Name) && !ofRange(call)) {
			for _, above := range path {
				aggregate, ok := above.(*parser.AggregateExpr)
				found = found && !(ok && slices.Contains(orderMatters, aggregate.Op))
			}
		}
		return nil
	})
	return found
}

var keepOrder = []string{"label_join", "label_replace", "time", "vector", "scalar"}

func ofRange(call *parser.Call) bool {
	return slices.ContainsFunc(call.Args, func(one parser.Expr) bool { return one.Type() == parser.ValueTypeMatrix })
}

// ask makes the queries of a turn at their moments up to `upTo` (ms), but of those that read what the turn writes. One
// that fails at any moment is asked at each.
func (a *ahead) ask(ctx context.Context, those turn, upTo int64) {
	a.answers = map[*rules.Group]map[int64]promql.Vector{}
	var written []string
	for _, which := range those {
		written = append(written, writes(ruleOf(a.e.groups[which]))...)
	}
	for _, which := range those {
		group, first := a.e.groups[which], a.e.next[which]
		last := first.Add((time.UnixMilli(upTo).Sub(first) / group.Interval()) * group.Interval())
		sees, known := reads(group, written)
		if known && !sees && inOrder(ruleOf(group).Query()) && last.After(first) {
			if found := a.over(ctx, group, first, last); found != nil {
				a.answers[group] = found
			}
		}
	}
}

func (a *ahead) over(ctx context.Context, group *rules.Group, first, last time.Time) map[int64]promql.Vector {
	expr, offset := ruleOf(group).Query(), group.QueryOffset()
	seen := a.e.wants.narrow(a.e.db, expr)
	query, err := a.e.engine.NewRangeQuery(
		ctx, seen, nil, expr.String(), first.Add(-offset), last.Add(-offset), group.Interval(),
	)
	if err != nil {
		return nil
	}
	defer query.Close()
	matrix, err := query.Exec(ctx).Matrix()
	if err != nil {
		return nil
	}
	found := map[int64]promql.Vector{}
	for _, one := range matrix {
		for _, point := range one.Floats {
			found[point.T] = append(found[point.T], promql.Sample{Metric: one.Metric, T: point.T, F: point.F})
		}
		for _, point := range one.Histograms {
			found[point.T] = append(found[point.T], promql.Sample{Metric: one.Metric, T: point.T, H: point.H.Copy()})
		}
	}
	return found
}

// answer is a rules.QueryFunc.
func (a *ahead) answer(ctx context.Context, text string, at time.Time) (promql.Vector, error) {
	var seen storage.Queryable = a.e.db
	if expr := ruleOf(a.group).Query(); text == expr.String() {
		if found, ok := a.answers[a.group]; ok {
			return found[at.UnixMilli()], nil
		}
		seen = a.e.wants.narrow(seen, expr)
	}
	return rules.EngineQueryFunc(a.e.engine, seen)(ctx, text, at)
}
