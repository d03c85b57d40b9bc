package main

import (
	"errors"
	"log/slog"
	"math"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// load reads rule files with Prometheus' own loader. Each rule comes as a group of its own, in the order of the files and
// of what stands in them: what is evaluated one after the other at a moment is the same in one group as in many.
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
		for _, group := range own {
			offset := group.QueryOffset()
			for _, rule := range group.Rules() {
				groups = append(groups, rules.NewGroup(rules.GroupOptions{
					Name: group.Name(), File: file, Interval: group.Interval(), Limit: group.Limit(),
					Rules: []rules.Rule{rule}, Opts: opts, QueryOffset: &offset,
				}))
			}
		}
	}
	return groups, nil
}

func ruleOf(group *rules.Group) rules.Rule { return group.Rules()[0] }

// writes returns the metrics that a rule writes.
func writes(rule rules.Rule) []string {
	if _, ok := rule.(*rules.AlertingRule); ok {
		return []string{"ALERTS", "ALERTS_FOR_STATE"}
	}
	return []string{rule.Name()}
}

// readings is which samples rules look at: those of all series, and those that are read of the places alone that are
// asked about. None after the end.
type readings struct {
	metrics
	Places metrics `json:"places"`
	End    int64   `json:"end"`
}

// metrics is some, by name and by the patterns that match names, each from a time on (ms). All: of any name and time.
type metrics struct {
	Names    map[string]int64 `json:"names"`
	Patterns map[string]int64 `json:"patterns"`
	All      bool             `json:"all"`
}

// A query in an annotation or a label reads what nobody can tell without running it; that of the time reads nothing.
var (
	templateQuery = regexp.MustCompile(`\bquery\b`)
	timeQuery     = regexp.MustCompile(`"[0-9() *+/-]*time\(\)[0-9() *+/-]*"\s*\|\s*query|query\s+"[0-9() *+/-]*time\(\)[0-9() *+/-]*"`)
)

func asksInTemplates(groups []*rules.Group) bool {
	for _, group := range groups {
		if alerting, ok := ruleOf(group).(*rules.AlertingRule); ok {
			text := alerting.Annotations().String() + alerting.Labels().String()
			text = strings.ReplaceAll(text, `\"`, `"`)
			if templateQuery.MatchString(timeQuery.ReplaceAllString(text, "")) {
				return true
			}
		}
	}
	return false
}

// readBy returns what the groups look at when each is evaluated from its first moment on, and what is asked beside.
func readBy(groups []*rules.Group, evaluated span, lookback time.Duration, wants *wants, beside []asked) readings {
	found := readings{newMetrics(asksInTemplates(groups)), newMetrics(false), evaluated.end}
	add := func(reaches []reach, first int64) {
		for _, one := range reaches {
			since := first
			if first != math.MinInt64 {
				since -= one.back.Milliseconds()
			}
			switch {
			case wants.by(one.selector, elsewhere):
				found.add(one, since)
			case len(wants.of[one.selector]) > 0:
				found.Places.add(one, since)
			}
		}
	}
	for _, group := range groups {
		first := evaluated.firsts[group]
		reaches, known := reachesOf(group, lookback)
		if !known {
			first = math.MinInt64
		}
		add(reaches, first)
	}
	for _, one := range beside {
		reaches, _ := reachesIn(one.sum, 0, lookback)
		add(reaches, one.first)
	}
	return found
}

func newMetrics(all bool) metrics { return metrics{map[string]int64{}, map[string]int64{}, all} }

func (m *metrics) add(reach reach, since int64) {
	named := false
	for _, matcher := range reach.selector.LabelMatchers {
		if matcher.Name != labels.MetricName {
			continue
		}
		of := m.Names
		switch matcher.Type {
		case labels.MatchRegexp:
			of = m.Patterns
		case labels.MatchNotEqual, labels.MatchNotRegexp:
			continue
		}
		named = true
		if before, ok := of[matcher.Value]; !ok || since < before {
			of[matcher.Value] = since
		}
	}
	m.All = m.All || !named
}
