package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/emitd/emitd/node"
)

// Rule is what decided.
type Rule string

// The rules that decide a placement. The decisive rule is the first by which the chosen node and
// the runner-up differ.
const (
	OnlyCandidate Rule = "only candidate"
	HealthyNode   Rule = "healthy node" // many daemons failed on the runner-up lately
	LeastLoaded   Rule = "least loaded"
	FewerUnits    Rule = "fewer units of the daemon"
	ZoneSpread    Rule = "zone spread"
	StableHash    Rule = "stable hash"
)

// The rules of all other decisions.
const (
	NewlyDeclared    Rule = "declared"
	DeclaredAgain    Rule = "declared again"
	InstancesReduced Rule = "instances reduced"
	KeyRemoved       Rule = "key removed"
	NotKeyed         Rule = "the daemon has no keys any more"
	NotDeclared      Rule = "its node no longer declares it"
	NodeDraining     Rule = "node draining"
	NodeDeaf         Rule = "node deaf"
	NotAdvertised    Rule = "no node advertises it"
	NoEligibleNode   Rule = "no eligible node"
	Quarantined      Rule = "quarantined" // its daemon failed on several nodes
	Rebalancing      Rule = "rebalancing" // the unit moves so that loads become even
)

// The rules by which operators' commands decide.
const (
	DrainRequested   Rule = "drain requested"
	PauseRequested   Rule = "pause requested"
	MoveRequested    Rule = "move requested"
	RestartRequested Rule = "restart requested"
	Pinned           Rule = "pinned"
)

// Filter is why a node is no candidate: the first filter that applies.
type Filter string

// The filters, in the order in which they apply. A node state that this version does not know is a
// filter with its own name.
const (
	FilterLate      Filter = Filter(node.Late)
	FilterDraining  Filter = Filter(node.Draining)
	FilterDeaf      Filter = Filter(node.Deaf)
	FilterCordoned  Filter = "cordoned"   // an operator has cordoned or drained the node
	FilterNoDaemons Filter = "no daemons" // the node takes no daemons at all
	FilterKind      Filter = "kind"       // the node does not run this kind
	FilterLabels    Filter = "lacks"      // required labels are missing: the filter names them, "lacks zone=mars"
	FilterFull      Filter = "full"       // with the unit, the node's units would exceed its max_weight
	FilterEmbargoed Filter = "embargoed"  // the unit has an embargo on the node
)

// maxNames bounds how many nodes an event names.
const maxNames = 8

// Names is a number of nodes and the first eight of their names in order.
type Names struct {
	Count int      `json:"count"`
	Names []string `json:"names"`
}

// shorten counts the names and keeps the first of them; nil for none.
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

// Why is the reason of a decision. As JSON it is the detail of an event.
type Why struct {
	Rule Rule `json:"rule"`
	// Note adds what the rule alone does not say.
	Note string `json:"note,omitempty"`
	// Chosen is the name of the node that gets the unit. RunnerUp is the one that would get it
	// otherwise.
	Chosen   string `json:"chosen,omitempty"`
	RunnerUp string `json:"runner_up,omitempty"`
	// Value and RunnerUpValue are what the rule compared: loads with the unit, or numbers of units
	// of the daemon on the node or in its zone.
	Value         float64 `json:"value,omitempty"`
	RunnerUpValue float64 `json:"runner_up_value,omitempty"`
	// Previous is the node that held the unit before and why that ended, as "n3: holder is dead".
	Previous string `json:"left,omitempty"`
	// Filtered are the nodes that are no candidates. The map is shared between units: do not modify
	// it.
	Filtered map[Filter]Names `json:"filtered,omitempty"`
}

// String returns the reason for people to read: "least loaded (2.0 < 3.0); runner-up n2; left n3:
// holder is dead".
func (w Why) String() string {
	var b strings.Builder
	b.WriteString(string(w.Rule))
	if w.Note != "" {
		if w.Rule == Quarantined {
			b.WriteString(":")
		}
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
	if w.Previous != "" {
		b.WriteString("; left " + w.Previous)
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

// distinct formats two numbers with as many decimals, from 1 to 6, as it takes to make them differ.
func distinct(a, b float64) (string, string) {
	for digits := 1; ; digits++ {
		x, y := strconv.FormatFloat(a, 'f', digits, 64), strconv.FormatFloat(b, 'f', digits, 64)
		if x != y || digits == 6 {
			return x, y
		}
	}
}
