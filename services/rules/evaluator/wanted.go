package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
)

// naming is what is known of a series' labels: the value of one, "" where it has none, or that nobody knows it.
type naming func(label string) (value string, known bool)

// wanted returns whether series of which so much is known may matter.
type wanted func(naming) bool

func everything(naming) bool { return true }

// another is the value of a label that names a machine, a mount or a job that nothing is asked about; or it has none.
const another = "\xff"

// places is what alerts are asked about, by what kind it is: names of a node, a switch or a mount, and of jobs (job_id).
type places map[string][]string

// Labels that name a node, in hindcast's rules and in those that people bring.
var nodeLabels = []string{"node", "Hostname", "hostname", "nodename"}

// elsewhere is what is known of a series of other places: its labels name none that are asked about.
func elsewhere(label string) (string, bool) {
	known := slices.Contains([]string{"instance", "switch", "mount", "job_id"}, label) || slices.Contains(nodeLabels, label)
	return another, known
}

// wanted returns whether an alert, or a comparison's result, may be about these places. What names a node, a switch or a
// mount is not about its job.
func (p places) wanted(of naming) bool {
	is := func(label string, asked ...string) bool {
		value, known := of(label)
		return !known || slices.Contains(asked, value)
	}
	instance, known := of("instance")
	host, _, _ := strings.Cut(instance, ":")
	node, ofNode := p["node"], false
	for _, label := range nodeLabels {
		ofNode = ofNode || is(label, node...)
	}
	if len(node) > 0 && (ofNode || !known || slices.Contains(node, host)) {
		return true
	}
	for _, label := range []string{"switch", "mount"} {
		if asked := p[label]; len(asked) > 0 && is(label, asked...) {
			return true
		}
	}
	ofJob := is("node", "", another) && is("switch", "", another) && is("mount", "", another)
	return ofJob && len(p["job_id"]) > 0 && is("job_id", p["job_id"]...)
}

// wants is which series each selector of some rules must see for all that is asked to be as if it saw all; all of them
// where that is not known.
type wants struct {
	all    bool
	groups []*rules.Group
	of     map[*parser.VectorSelector][]wanted
	within []rules.Rule
}

// wantsOf returns what the rules' selectors must see for the alerts about some places, and what is asked beside.
func wantsOf(groups []*rules.Group, of places, beside []asked) *wants {
	found := &wants{all: len(of) == 0 || asksInTemplates(groups), groups: groups, of: map[*parser.VectorSelector][]wanted{}}
	if found.all {
		return found
	}
	for _, group := range groups {
		if alerting, ok := ruleOf(group).(*rules.AlertingRule); ok {
			found.push(alerting.Query(), without(of.wanted, namesOf(alerting.Labels())))
		}
	}
	for _, one := range beside {
		found.push(one.sum, of.wanted)
		found.push(one.difference, of.wanted)
	}
	return found
}

// by returns whether a selector must see series of which so much is known.
func (w *wants) by(selector *parser.VectorSelector, of naming) bool {
	return w.all || slices.ContainsFunc(w.of[selector], func(want wanted) bool { return want(of) })
}

// push notes what an expression's selectors must see where of its result only what is wanted matters.
func (w *wants) push(expr parser.Expr, want wanted) {
	switch node := expr.(type) {
	case *parser.VectorSelector:
		w.of[node] = append(w.of[node], want)
		for _, group := range w.groups {
			if (reach{selector: node}).sees(writes(ruleOf(group))) {
				w.pushInto(ruleOf(group), want)
			}
		}
	case *parser.MatrixSelector:
		w.push(node.VectorSelector, want)
	case *parser.SubqueryExpr:
		w.push(node.Expr, want)
	case *parser.ParenExpr:
		w.push(node.Expr, want)
	case *parser.UnaryExpr:
		w.push(node.Expr, want)
	case *parser.AggregateExpr:
		if node.Param != nil {
			w.push(node.Param, everything)
		}
		w.push(node.Expr, aggregated(node, want))
	case *parser.Call:
		w.pushCall(node, want)
	case *parser.BinaryExpr:
		w.pushBinary(node, want)
	}
}

// pushInto notes the same for a rule that writes what is wanted.
func (w *wants) pushInto(rule rules.Rule, want wanted) {
	if slices.Contains(w.within, rule) {
		w.all = true // it reads what follows from itself
		return
	}
	if _, alerts := rule.(*rules.AlertingRule); alerts {
		want = everything
	}
	w.within = append(w.within, rule)
	w.push(rule.Query(), without(want, namesOf(rule.Labels())))
	w.within = w.within[:len(w.within)-1]
}

func (w *wants) pushCall(node *parser.Call, want wanted) {
	switch name := node.Func.Name; {
	case name == "label_replace":
		want = replaced(want, textOf(node, 1), textOf(node, 2), textOf(node, 3), textOf(node, 4))
	case name == "label_join":
		var from []string
		for i := range node.Args[3:] {
			from = append(from, textOf(node, 3+i))
		}
		want = joined(want, textOf(node, 1), textOf(node, 2), from)
	case !keepsLabels(node):
		want = everything
	}
	for _, argument := range node.Args {
		if argument.Type() == parser.ValueTypeScalar {
			w.push(argument, everything)
		} else {
			w.push(argument, want)
		}
	}
}

func (w *wants) pushBinary(node *parser.BinaryExpr, want wanted) {
	left, right := node.LHS, node.RHS
	if left.Type() == parser.ValueTypeScalar || right.Type() == parser.ValueTypeScalar {
		for _, side := range []parser.Expr{left, right} {
			if side.Type() == parser.ValueTypeScalar {
				w.push(side, everything)
			} else {
				w.push(side, want)
			}
		}
		return
	}
	match := node.VectorMatching
	switch {
	case node.Op == parser.LAND || node.Op == parser.LUNLESS:
		w.push(left, want)
		w.push(right, matched(want, match, w.labelsOf(left)))
	case node.Op == parser.LOR:
		hides := matched(want, match, w.labelsOf(right))
		w.push(left, func(of naming) bool { return want(of) || hides(of) })
		w.push(right, want)
	case match.Card == parser.CardOneToOne:
		w.push(left, grouped(want, match.MatchingLabels, match.On))
		w.push(right, grouped(want, match.MatchingLabels, match.On))
	default:
		many, one := left, right
		if match.Card == parser.CardOneToMany {
			many, one = right, left
		}
		of := w.labelsOf(many)
		if of != nil {
			of = append(slices.Clone(of), match.Include...)
		}
		w.push(many, without(want, match.Include))
		w.push(one, matched(want, match, of))
	}
}

// labelsOf returns the only labels that an expression's result may have; nil where it may have any.
func (w *wants) labelsOf(expr parser.Expr) []string {
	switch node := expr.(type) {
	case *parser.ParenExpr:
		return w.labelsOf(node.Expr)
	case *parser.UnaryExpr:
		return w.labelsOf(node.Expr)
	case *parser.SubqueryExpr:
		return w.labelsOf(node.Expr)
	case *parser.MatrixSelector:
		return w.labelsOf(node.VectorSelector)
	case *parser.VectorSelector:
		return w.labelsWritten(node)
	case *parser.AggregateExpr:
		if !node.Without && !ofMembers(node) {
			return append([]string{}, node.Grouping...)
		}
	case *parser.Call:
		if i := slices.IndexFunc(node.Args, ofSeries); i >= 0 && keepsLabels(node) {
			return w.labelsOf(node.Args[i])
		}
	case *parser.BinaryExpr:
		switch match := node.VectorMatching; {
		case match == nil && ofSeries(node.LHS):
			return w.labelsOf(node.LHS)
		case match == nil:
			return w.labelsOf(node.RHS)
		case node.Op == parser.LAND || node.Op == parser.LUNLESS:
			return w.labelsOf(node.LHS)
		case node.Op == parser.LOR:
			if left, right := w.labelsOf(node.LHS), w.labelsOf(node.RHS); left != nil && right != nil {
				return append(slices.Clone(left), right...)
			}
		case match.Card == parser.CardOneToOne && match.On:
			return append([]string{}, match.MatchingLabels...)
		}
	}
	return nil
}

// labelsWritten returns the labels of what a rule writes: nothing else has a name with a colon.
func (w *wants) labelsWritten(node *parser.VectorSelector) []string {
	if !strings.Contains(node.Name, ":") {
		return nil
	}
	for _, group := range w.groups {
		rule := ruleOf(group)
		if rule.Name() == node.Name && !slices.Contains(w.within, rule) {
			w.within = append(w.within, rule)
			found := w.labelsOf(rule.Query())
			w.within = w.within[:len(w.within)-1]
			if found == nil {
				return nil
			}
			return append(slices.Clone(found), namesOf(rule.Labels())...)
		}
	}
	return nil
}

func ofSeries(expr parser.Expr) bool {
	return expr.Type() != parser.ValueTypeScalar && expr.Type() != parser.ValueTypeString
}

// Functions of time, and of one series at a time.
var ofEach = regexp.MustCompile(`^(\w+_over_time|rate|irate|i?delta|increase|changes|resets|deriv|predict_linear|` +
	`abs|ceil|floor|round|clamp|clamp_min|clamp_max|exp|ln|log2|log10|sqrt|sgn|timestamp)$`)

func keepsLabels(node *parser.Call) bool {
	return ofEach.MatchString(node.Func.Name) && node.Func.Name != "absent_over_time"
}

// ofMembers returns whether an aggregation's result is some of what it is of, or has another label.
func ofMembers(node *parser.AggregateExpr) bool {
	return slices.Contains([]parser.ItemType{
		parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO, parser.COUNT_VALUES,
	}, node.Op)
}

func aggregated(node *parser.AggregateExpr, want wanted) wanted {
	if ofMembers(node) {
		return everything
	}
	return grouped(want, node.Grouping, !node.Without)
}
