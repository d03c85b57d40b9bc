package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// grouped is about what a series becomes that keeps some labels, or (`only` false) all but these.
func grouped(want wanted, names []string, only bool) wanted {
	return func(of naming) bool {
		return want(func(label string) (string, bool) {
			if slices.Contains(names, label) != only {
				return "", true
			}
			return of(label)
		})
	}
}

// without is about a series some of whose labels nobody knows.
func without(want wanted, names []string) wanted {
	if len(names) == 0 {
		return want
	}
	return func(of naming) bool {
		return want(func(label string) (string, bool) {
			if slices.Contains(names, label) {
				return "", false
			}
			return of(label)
		})
	}
}

// matched is about the series on the other side that one is matched with, of which there are these labels, or any (nil).
// Those of one instance are of the node that it names.
func matched(want wanted, match *parser.VectorMatching, others []string) wanted {
	isKey := func(label string) bool { return slices.Contains(match.MatchingLabels, label) == match.On }
	return func(of naming) bool {
		return want(func(label string) (string, bool) {
			switch {
			case isKey(label):
				return of(label)
			case others != nil && !slices.Contains(others, label):
				return "", true
			case slices.Contains(nodeLabels, label) && isKey("instance"):
				instance, known := of("instance")
				host, _, _ := strings.Cut(instance, ":")
				return host, known && host != ""
			}
			return "", false
		})
	}
}

// Patterns whose first group, where they match, is a machine's name whenever the whole is it with what follows a colon.
var namesMachine = []string{"(.+)", "(.*)", "([^:]+).*", "([^:]*).*", "([^:]+)(:.*)?", "(.+?)(:.*)?"}

// replaced is about what label_replace makes of a series.
func replaced(want wanted, to, replacement, from, pattern string) wanted {
	regex, err := regexp.Compile("^(?s:" + pattern + ")$")
	if err != nil {
		return everything
	}
	return func(of naming) bool {
		return want(func(label string) (string, bool) {
			if label != to {
				return of(label)
			}
			value, known := of(from)
			before, beforeKnown := of(to)
			switch found := regex.FindStringSubmatchIndex(value); {
			case !known:
				return "", false
			case value == another:
				// Or it has no such label, and what it becomes stays.
				plain := replacement == "$1" && slices.Contains(namesMachine, pattern)
				return another, plain && beforeKnown && (before == "" || before == another)
			case found != nil:
				return string(regex.ExpandString(nil, replacement, value, found)), true
			}
			return before, beforeKnown
		})
	}
}

// joined is about what label_join makes of a series.
func joined(want wanted, to, separator string, from []string) wanted {
	return func(of naming) bool {
		return want(func(label string) (string, bool) {
			if label != to {
				return of(label)
			}
			var parts []string
			others := false
			for _, name := range from {
				value, known := of(name)
				if !known {
					return "", false
				}
				others = others || value == another
				if value != "" && value != another || separator != "" {
					parts = append(parts, value)
				}
			}
			if others {
				return another, len(parts) == 0
			}
			return strings.Join(parts, separator), true
		})
	}
}

func textOf(node *parser.Call, i int) string {
	expr := node.Args[i]
	for {
		switch inner := expr.(type) {
		case *parser.ParenExpr:
			expr = inner.Expr
		case *parser.StringLiteral:
			return inner.Val
		default:
			panic("a label function's argument that is no string")
		}
	}
}

func namesOf(of labels.Labels) []string {
	var found []string
	of.Range(func(one labels.Label) { found = append(found, one.Name) })
	return found
}
