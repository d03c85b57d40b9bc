package main

import (
	"errors"
	"log/slog"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// load reads rule files with Prometheus' own loader; the groups come in the order of the files and of what stands in them.
func load(opts *rules.ManagerOptions, interval time.Duration, externalURL string, files []string) ([]*rules.Group, error) {
	if opts == nil {
		opts = &rules.ManagerOptions{Logger: slog.New(slog.DiscardHandler)}
	}
	opts.Parser = parser.NewParser(parser.Options{})
	opts.NameValidationScheme = model.UTF8Validation
	loaded, errs := rules.NewManager(opts).LoadGroups(interval, labels.EmptyLabels(), externalURL, nil, false, files...)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	var groups []*rules.Group
	for _, file := range files {
		var own []*rules.Group
		for _, group := range loaded {
			if group.File() == file {
				own = append(own, group)
			}
		}
		// Manager.LoadGroups returns a map; names keep the order the same from run to run.
		sort.Slice(own, func(i, j int) bool { return own[i].Name() < own[j].Name() })
		groups = append(groups, own...)
	}
	return groups, nil
}

// reads is which metrics rules look at: exact names and patterns, or all of them.
type reads struct {
	Names    []string `json:"names"`
	Patterns []string `json:"patterns"`
	All      bool     `json:"all"`
}

// A query in an annotation or a label reads what nobody can tell without running it; that of the time reads nothing.
var (
	templateQuery = regexp.MustCompile(`\bquery\b`)
	timeQuery     = regexp.MustCompile(`"[0-9() *+/-]*time\(\)[0-9() *+/-]*"\s*\|\s*query|query\s+"[0-9() *+/-]*time\(\)[0-9() *+/-]*"`)
)

func read(groups []*rules.Group) reads {
	found := reads{Names: []string{}, Patterns: []string{}}
	seen := map[string]bool{}
	for _, group := range groups {
		for _, rule := range group.Rules() {
			found.selectors(rule.Query(), seen)
			if alerting, ok := rule.(*rules.AlertingRule); ok {
				text := alerting.Annotations().String() + alerting.Labels().String()
				text = strings.ReplaceAll(text, `\"`, `"`)
				found.All = found.All || templateQuery.MatchString(timeQuery.ReplaceAllString(text, ""))
			}
		}
	}
	sort.Strings(found.Names)
	sort.Strings(found.Patterns)
	return found
}

func (r *reads) selectors(expr parser.Expr, seen map[string]bool) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		named := false
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != labels.MetricName || seen[matcher.String()] {
				named = named || matcher.Name == labels.MetricName
				continue
			}
			switch matcher.Type {
			case labels.MatchEqual:
				r.Names = append(r.Names, matcher.Value)
			case labels.MatchRegexp:
				r.Patterns = append(r.Patterns, matcher.Value)
			default:
				continue
			}
			named, seen[matcher.String()] = true, true
		}
		r.All = r.All || !named
		return nil
	})
}
