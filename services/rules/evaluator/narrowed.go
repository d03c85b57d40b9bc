package main

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// narrowed is a storage in which a query sees only the series that are wanted, by the selector that looks for them.
type narrowed struct {
	storage.Queryable
	by map[string][]wanted
}

// narrow returns what an expression's query is to see of a storage; all of it where that is not known.
func (w *wants) narrow(all storage.Queryable, expr parser.Expr) storage.Queryable {
	if w.all {
		return all
	}
	found := narrowed{all, map[string][]wanted{}}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			key := keyOf(selector.LabelMatchers)
			found.by[key] = append(found.by[key], w.of[selector]...)
		}
		return nil
	})
	return found
}

func keyOf(matchers []*labels.Matcher) string {
	var texts []string
	for _, one := range matchers {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, "\xff")
}

func (n narrowed) Querier(start, end int64) (storage.Querier, error) {
	querier, err := n.Queryable.Querier(start, end)
	return narrowedQuerier{querier, n.by}, err
}

type narrowedQuerier struct {
	storage.Querier
	by map[string][]wanted
}

func (n narrowedQuerier) Select(
	ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher,
) storage.SeriesSet {
	by, ok := n.by[keyOf(matchers)]
	if ok && len(by) == 0 {
		return storage.EmptySeriesSet()
	}
	found := n.Querier.Select(ctx, sorted, hints, matchers...)
	if !ok {
		return found
	}
	return narrowedSet{found, by}
}

type narrowedSet struct {
	storage.SeriesSet
	by []wanted
}

func (n narrowedSet) Next() bool {
	for n.SeriesSet.Next() {
		of := n.At().Labels()
		known := func(label string) (string, bool) { return of.Get(label), true }
		if slices.ContainsFunc(n.by, func(want wanted) bool { return want(known) }) {
			return true
		}
	}
	return false
}
