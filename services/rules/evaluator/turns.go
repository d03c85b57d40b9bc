package main

import (
	"cmp"
	"slices"

	"github.com/prometheus/prometheus/rules"
)

// turn is some groups, by their numbers, that are evaluated together, moment by moment.
type turn []int

// turns returns the groups in an order in which each turn can be evaluated over a stretch of time before the next one
// is, with the same outcome as if all were evaluated moment by moment. Who reads what another writes comes after it. But a
// rule that stands before it in the same group of a file reads what was written at the moment before: these two, and what
// reads one and is read by the other, are one turn. Between the groups of files Prometheus keeps no order.
func turns(groups []*rules.Group) []turn {
	reaches := make([][]bool, len(groups)) // itself, and what each reads, whether directly or not
	for i := range reaches {
		reaches[i] = make([]bool, len(groups))
		reaches[i][i] = true
	}
	everything := asksInTemplates(groups)
	for i, reader := range groups {
		for j, writer := range groups {
			sees, known := reads(reader, writes(ruleOf(writer)))
			everything = everything || (sees && !known)
			reaches[i][j] = reaches[i][j] || sees
			reaches[j][i] = reaches[j][i] || (sees && j > i && together(reader, writer))
		}
	}
	for over := range groups {
		for i := range groups {
			for j := range groups {
				reaches[i][j] = reaches[i][j] || everything || (reaches[i][over] && reaches[over][j])
			}
		}
	}
	var found []turn
	for i := range groups {
		known := slices.IndexFunc(found, func(one turn) bool { return reaches[i][one[0]] && reaches[one[0]][i] })
		if known < 0 {
			found = append(found, turn{i})
		} else {
			found[known] = append(found[known], i)
		}
	}
	// Who reads another reaches all that the other does, and itself.
	slices.SortStableFunc(found, func(a, b turn) int { return cmp.Compare(count(reaches[a[0]]), count(reaches[b[0]])) })
	return found
}

// together returns whether rules stand in one group of a file.
func together(a, b *rules.Group) bool { return a.File() == b.File() && a.Name() == b.Name() }

func count(those []bool) int {
	found := 0
	for _, one := range those {
		if one {
			found++
		}
	}
	return found
}

// reads returns whether a group's rule looks at one of some metrics; false where what it looks at depends on more than
// the moment of its evaluation.
func reads(group *rules.Group, metrics []string) (sees, known bool) {
	reaches, known := reachesOf(group, 0)
	return slices.ContainsFunc(reaches, func(one reach) bool { return one.sees(metrics) }), known
}
