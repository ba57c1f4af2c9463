package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/emitd/emitd/node"
)

// Rule says what decided.
type Rule string

// The rules that decide a placement: the first of them by which the chosen node and the runner-up
// differ.
const (
	OnlyCandidate Rule = "only candidate"
	LeastLoaded   Rule = "least loaded"
	FewerUnits    Rule = "fewer units of the daemon"
	ZoneSpread    Rule = "zone spread"
	StableHash    Rule = "stable hash"
)

// The rules that decide anything else.
const (
	NewlyDeclared    Rule = "declared"
	DeclaredAgain    Rule = "declared again"
	InstancesReduced Rule = "instances reduced"
	NodeDraining     Rule = "node draining"
	NodeDeaf         Rule = "node deaf"
	NotAdvertised    Rule = "no node advertises it"
	NoEligibleNode   Rule = "no eligible node"
)

// Filter says why a node was no candidate: the first that applies.
type Filter string

// The filters, in the order in which they apply. A state of node that this version does not know
// filters under its own name.
const (
	FilterLate      Filter = Filter(node.Late)
	FilterDraining  Filter = Filter(node.Draining)
	FilterCordoned  Filter = Filter(node.Cordoned)
	FilterDeaf      Filter = Filter(node.Deaf)
	FilterNoDaemons Filter = "no daemons" // the node takes none at all
	FilterKind      Filter = "kind"       // it does not run this kind
	FilterLabels    Filter = "lacks"      // labels that are required: the filter names them, "lacks zone=mars"
	FilterEmbargoed Filter = "embargoed"  // the unit failed there
)

// maxNames bounds what an event says of many nodes.
const maxNames = 8

// Names is how many nodes there are, and who the first eight by name.
type Names struct {
	Count int      `json:"count"`
	Names []string `json:"names"`
}

// shorten counts names and keeps the first of them; nil for none.
func shorten(names map[Filter][]string) map[Filter]Names {
	if len(names) == 0 {
		return nil
	}
	out := make(map[Filter]Names, len(names))
	for f, all := range names {
		slices.Sort(all)
		out[f] = Names{Count: len(all), Names: slices.Clip(all[:min(len(all), maxNames)])}
	}
	return out
}

// Why is the reason of a decision. It marshals to the detail of an event.
type Why struct {
	Rule Rule `json:"rule"`
	// Note tells more where the rule does not say enough.
	Note string `json:"note,omitempty"`
	// Chosen is the name of the node that gets the unit, RunnerUp of the one that would have.
	Chosen   string `json:"chosen,omitempty"`
	RunnerUp string `json:"runner_up,omitempty"`
	// Value and RunnerUpValue are what the rule compared: loads with the unit, or numbers of
	// units of the daemon on the node or in its zone.
	Value         float64 `json:"value,omitempty"`
	RunnerUpValue float64 `json:"runner_up_value,omitempty"`
	// Left is where the unit was before and why that ended, as "n3: holder is dead".
	Left string `json:"left,omitempty"`
	// Filtered are the nodes that were no candidates. It is shared between units: do not write.
	Filtered map[Filter]Names `json:"filtered,omitempty"`
}

// String is for people: "least loaded (2.0 < 3.0); runner-up n2; left n3: holder is dead".
func (w Why) String() string {
	var b strings.Builder
	b.WriteString(string(w.Rule))
	if w.Note != "" {
		b.WriteString(" " + w.Note)
	}
	switch w.Rule {
	case LeastLoaded:
		lower, higher := distinct(w.Value, w.RunnerUpValue)
		fmt.Fprintf(&b, " (%s < %s)", lower, higher)
	case FewerUnits, ZoneSpread:
		fmt.Fprintf(&b, " (%.0f < %.0f)", w.Value, w.RunnerUpValue)
	}
	if w.RunnerUp != "" {
		b.WriteString("; runner-up " + w.RunnerUp)
	}
	if w.Left != "" {
		b.WriteString("; left " + w.Left)
	}
	for _, f := range slices.Sorted(maps.Keys(w.Filtered)) {
		n := w.Filtered[f]
		b.WriteString("; ")
		if !strings.HasPrefix(string(f), string(FilterLabels)) {
			fmt.Fprintf(&b, "%d ", n.Count)
		}
		fmt.Fprintf(&b, "%s: %s", f, strings.Join(n.Names, ", "))
		if n.Count > len(n.Names) {
			b.WriteString(", …")
		}
	}
	return b.String()
}

// distinct writes two numbers with as many decimals as it takes to tell them apart, at least one.
func distinct(a, b float64) (string, string) {
	for digits := 1; ; digits++ {
		x, y := strconv.FormatFloat(a, 'f', digits, 64), strconv.FormatFloat(b, 'f', digits, 64)
		if x != y || digits == 6 {
			return x, y
		}
	}
}
