package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// asked is a comparison in an alert rule's condition of which is asked how near it came, and when: from a moment at which
// the rule itself was evaluated. The sum of its two sides and their difference are made with its own matching.
type asked struct {
	comparison
	rule            string
	sum, difference parser.Expr
	first, last     int64
	step            time.Duration
}

// askedOf returns those of the alert rules named.
func askedOf(groups []*rules.Group, within window, names []string) ([]asked, error) {
	var found []asked
	for _, group := range groups {
		alerting, ok := ruleOf(group).(*rules.AlertingRule)
		if !ok || !slices.Contains(names, alerting.Name()) {
			continue
		}
		step := group.Interval().Milliseconds()
		first := (within.start + step - 1) / step * step
		for _, one := range comparisons(alerting.Query(), "") {
			sum, err := combined(one, parser.ADD)
			difference, err2 := combined(one, parser.SUB)
			if err := errors.Join(err, err2); err != nil {
				return nil, fmt.Errorf("%s: %w", alerting.Name(), err)
			}
			found = append(found, asked{one, alerting.Name(), sum, difference, first, within.end, group.Interval()})
		}
	}
	return found, nil
}

// nearest says how near each comparison came to holding: by series of its result, where its left side came nearest to
// its right side, measured by the latter.
func (e *evaluation) nearest(ctx context.Context, those []asked) error {
	for _, one := range those {
		if err := e.came(ctx, one); err != nil {
			return fmt.Errorf("%s: %w", one.rule, err)
		}
	}
	return e.out.Flush()
}

// comparison is one in a rule's condition; `within` is the one whose left side it is a part of, if there is one.
type comparison struct {
	*parser.BinaryExpr
	within string
}

// comparisons returns those that must hold for an expression to give anything, or that decide how much it gives. What
// stands behind `unless`, in a subquery or on a comparison's right side is none of them.
func comparisons(expr parser.Expr, within string) []comparison {
	switch node := expr.(type) {
	case *parser.ParenExpr:
		return comparisons(node.Expr, within)
	case *parser.StepInvariantExpr:
		return comparisons(node.Expr, within)
	case *parser.AggregateExpr:
		return comparisons(node.Expr, within)
	case *parser.Call:
		var found []comparison
		for _, argument := range node.Args {
			found = append(found, comparisons(argument, within)...)
		}
		return found
	case *parser.BinaryExpr:
		switch node.Op {
		case parser.GTR, parser.GTE, parser.LSS, parser.LTE, parser.EQLC:
			if !node.ReturnBool {
				return append(comparisons(node.LHS, node.String()), comparison{node, within})
			}
			return nil
		case parser.LUNLESS, parser.NEQ:
			return comparisons(node.LHS, within)
		}
		return append(comparisons(node.LHS, within), comparisons(node.RHS, within)...)
	}
	return nil
}

// came evaluates both sides of a comparison as the engine matches them: half their sum and difference give them back.
func (e *evaluation) came(ctx context.Context, one asked) error {
	sums, err := e.sides(ctx, one, one.sum)
	if err != nil {
		return err
	}
	differences, err := e.sides(ctx, one, one.difference)
	if err != nil {
		return err
	}
	byLabels := map[uint64]promql.Series{}
	for _, difference := range differences {
		byLabels[difference.Metric.Hash()] = difference
	}
	for _, sum := range sums {
		difference := byLabels[sum.Metric.Hash()]
		var best struct {
			short, value, threshold float64
			at                      int64
			met, known              bool
		}
		for i, point := range sum.Floats {
			if i >= len(difference.Floats) || difference.Floats[i].T != point.T {
				break
			}
			value, threshold := (point.F+difference.Floats[i].F)/2, (point.F-difference.Floats[i].F)/2
			short := wanting(one.Op, value, threshold)
			if math.IsNaN(short) || math.IsInf(short, 0) || (best.known && short >= best.short) {
				continue
			}
			best.short, best.value, best.threshold, best.at, best.known = short, value, threshold, point.T, true
			best.met = short < 0 || short == 0 && one.Op != parser.GTR && one.Op != parser.LSS
		}
		if best.known {
			e.say(map[string]any{
				"kind": "near", "rule": one.rule, "condition": one.String(), "within": one.within, "labels": sum.Metric.Map(),
				"at": best.at, "value": best.value, "threshold": best.threshold, "met": best.met,
			})
		}
	}
	return nil
}

// wanting returns by what share of its threshold a value misses it; below 0 it is past it.
func wanting(op parser.ItemType, value, threshold float64) float64 {
	short := (threshold - value) / max(math.Abs(threshold), 1e-12)
	if math.Abs(short) < 1e-12 {
		return 0 // what rounding has left
	}
	switch op {
	case parser.LSS, parser.LTE:
		return -short
	case parser.EQLC:
		return math.Abs(short)
	}
	return short
}

func combined(one comparison, op parser.ItemType) (parser.Expr, error) {
	both := parser.BinaryExpr{
		Op: op, VectorMatching: one.VectorMatching,
		// They bind less tightly than the comparison's sides may.
		LHS: &parser.ParenExpr{Expr: one.LHS}, RHS: &parser.ParenExpr{Expr: one.RHS},
	}
	return parser.NewParser(parser.Options{}).ParseExpr(both.String())
}

func (e *evaluation) sides(ctx context.Context, one asked, expr parser.Expr) (promql.Matrix, error) {
	if one.first > one.last {
		return nil, nil
	}
	first, last := time.UnixMilli(one.first).UTC(), time.UnixMilli(one.last).UTC()
	query, err := e.engine.NewRangeQuery(ctx, e.wants.narrow(e.db, expr), nil, expr.String(), first, last, one.step)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	matrix, err := result.Matrix()
	if err != nil {
		return nil, err
	}
	kept := make(promql.Matrix, len(matrix))
	for i, series := range matrix {
		// The query's memory is used again once it is closed.
		kept[i] = promql.Series{Metric: series.Metric, Floats: slices.Clone(series.Floats)}
	}
	return kept, nil
}
