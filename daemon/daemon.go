// Package daemon defines daemons, the life of their assignments, and the interface of the user's
// code.
//
// A daemon is a kind of background work, known by an [ID]. A [Spec] with Instances N declares N
// units, daemon/0 … daemon/N-1. One with Instances [Keyed] has a unit daemon~key for each key that the
// store has for the daemon. A [Unit] is what the leader assigns to one node at a time, and at
// most one effective holder has it. Every run of a unit has a generation, a number that never
// repeats and only grows. [Fence] is the pair (unit, generation). It is the fencing token by which
// a resource can refuse the effects of earlier runs.
//
// A program registers a spec with its agent at a coordinator. The agent works until it is told to stop:
//
//	agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
//		select {
//		case <-ctx.Done(): // stop now: the unit may be another node's soon
//			return ctx.Err()
//		case <-a.Draining(): // finish what is in flight, then return
//			return nil
//		}
//	})
//	err := c.Register(daemon.Spec{ID: "acme:reports", Instances: 4}, agent)
//
// The coordinator calls the agent on a goroutine of its own for each run. What the agent starts must have ended when
// it returns. [Each] makes an agent of a function that does one step.
//
// One table ([Next]) defines the life of an assignment:
//
//	             assign              acknowledge            revoke             confirm
//	unassigned ─────────▶ assigning ─────────────▶ active ────────▶ revoking ─────────▶ deleted
//	                       ▲    │                     │                │                 ▲   │
//	                       │    └─────────────────────┴────────────────┴─────────────────┘   │
//	                       │     release, abandon, expire        abandon, expire             │
//	                       └──────────────────────────── assign ─────────────────────────────┘
//
// A unit that is still assigning can be revoked, too. Resume (a new run, with a higher generation)
// leaves an active unit active. Fail, recover and postpone leave the state as it is. Every other
// pair of state and step is refused and changes nothing. Deleted is the end of an assignment, not
// of the unit. The unit's row stays, with its last generation, and the next assignment gets a
// higher one.
//
// The package promises at most one *effective* holder: effects that pass the fence come in the
// order of generations. Running code overlaps only where a process was paused or abandoned. It does
// not promise that exactly one run executes. No coordinator can promise that.
//
// The types here are plain values, except [Assignment]: it is the handle that internal/coordinator/supervisor
// gives to the user's code.
//
// The terms are those of docs/glossary.md.
package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/node"
)

// ID names a daemon: ^[a-z0-9][a-z0-9._:/-]{0,127}$. The prefix emit: is reserved for built-in
// daemons. What nodes of a group declare has the group's name behind it in the cluster: acme:reports@billing (see In).
type ID string

// Kind names the code that runs a daemon. A node advertises the kinds it can run. A spec's kind is
// its ID unless it names another. One kind can thus serve many daemons: every queue is of the kind
// emit:queue.
type Kind string

// Reserved is the prefix of built-in daemons.
const Reserved = "emit:"

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9._:/-]{0,127}$`)

// Validate reports why an ID cannot name a daemon of a cluster, or nil.
func (id ID) Validate() error {
	name, group, grouped := strings.Cut(string(id), "@")
	switch {
	case name == "":
		return errors.New("daemon id is empty; use a name such as acme:reports")
	case len(name) > 128:
		return fmt.Errorf("daemon id %.20q… has %d characters, the limit is 128", name, len(name))
	case !validID.MatchString(name):
		return fmt.Errorf("daemon id %q does not match %s (lower-case letters, digits and ._:/-)", name, validID)
	case grouped:
		return ValidateGroup(group)
	}
	return nil
}

// Unit is one instance of a daemon. It has an index, or a key of the user's. Its text form is <daemon>/<index>, always
// with the index, or <daemon>~<key>.
type Unit struct {
	Daemon ID
	Index  int
	Key    string // of a unit of a keyed daemon, whose index is 0; see ValidateKey
}

// String returns <daemon>/<index>, or <daemon>~<key>.
func (u Unit) String() string {
	if u.Key != "" {
		return string(u.Daemon) + "~" + u.Key
	}
	return string(u.Daemon) + "/" + strconv.Itoa(u.Index)
}

// IsZero reports whether u names nothing.
func (u Unit) IsZero() bool { return u == Unit{} }

// Compare orders units by daemon, then by key, then by index. Units with an index come before those with a key.
func (u Unit) Compare(v Unit) int {
	if c := strings.Compare(string(u.Daemon), string(v.Daemon)); c != 0 {
		return c
	}
	if c := strings.Compare(u.Key, v.Key); c != 0 {
		return c
	}
	return cmp.Compare(u.Index, v.Index)
}

// MarshalText returns the text form; the zero Unit is empty text.
func (u Unit) MarshalText() ([]byte, error) {
	if u.IsZero() {
		return nil, nil
	}
	return []byte(u.String()), nil
}

// UnmarshalText parses the text form.
func (u *Unit) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*u = Unit{}
		return nil
	}
	v, err := ParseUnit(string(text))
	if err == nil {
		*u = v
	}
	return err
}

// ParseUnit parses <daemon>/<index> or <daemon>~<key>. No daemon's ID contains a ~, so the first one ends it.
func ParseUnit(s string) (Unit, error) {
	if id, key, ok := strings.Cut(s, "~"); ok {
		if id == "" {
			return Unit{}, fmt.Errorf("unit %.40q has no daemon before the ~", s)
		}
		if err := ValidateKey(key); err != nil {
			return Unit{}, fmt.Errorf("unit of %s: %w", id, err)
		}
		return Unit{Daemon: ID(id), Key: key}, nil
	}
	i := strings.LastIndexByte(s, '/')
	if i <= 0 {
		return Unit{}, fmt.Errorf("unit %q is not of the form daemon/index or daemon~key", s)
	}
	n, err := strconv.Atoi(s[i+1:])
	if err != nil || n < 0 || strconv.Itoa(n) != s[i+1:] {
		return Unit{}, fmt.Errorf("unit %q does not end in an index", s)
	}
	return Unit{Daemon: ID(s[:i]), Index: n}, nil
}

// Spec declares a daemon. Nodes advertise specs, and the leader plans over the union of what live
// nodes advertise. Where two specs of one daemon differ, the higher Revision wins. Of equal
// revisions, the spec of the process that registered last wins. A process that was away and returns
// keeps the time of its first registration.
type Spec struct {
	ID   ID   `json:"id"`             // as the program declares it, without a group
	Kind Kind `json:"kind,omitempty"` // default: the ID
	// Revision ranks the specs of one daemon that nodes declare differently: the highest wins.
	// Raise it with each change if old and new programs may be started in any order. The default is
	// 0, the lowest.
	Revision int64 `json:"revision,omitempty"`
	// Instances is the number of units; 0 counts as 1. Keyed declares one unit for each key that the store has for
	// the daemon: the set of units may then change at any time, and no node needs to know it.
	Instances int `json:"instances,omitempty"`
	// Weight is what one unit adds to a node's load; 0 counts as 1.
	Weight int `json:"weight,omitempty"`
	// Requires are labels that a node must have, all of them, to be given a unit.
	Requires map[string]string `json:"requires,omitempty"`
	// Spread is a label of nodes. Where loads are equal, the leader spreads the units over the
	// values of that label. The default is "zone".
	Spread string `json:"spread,omitempty"`
	// WaitReady delays the acknowledgement until the agent calls Assignment.Ready. Without it, the
	// start of Run acknowledges. On a store without wake-ups the default timings leave such an
	// agent about 2 s to get ready: raise AcknowledgeTimeout.
	WaitReady bool `json:"wait_ready,omitempty"`
	// AcknowledgeTimeout and DrainTimeout override the cluster's, for this daemon only. Those that are too short for the
	// node's heartbeats are refused when the daemon is registered, as they are in a coordinator's Timing.
	AcknowledgeTimeout time.Duration `json:"acknowledge_timeout,omitempty"`
	DrainTimeout       time.Duration `json:"drain_timeout,omitempty"`
	// StallTimeout is how long a run may go without calling Assignment.Progress; longer is a
	// failure. 0 = never. That of a [Periodic] is more than 10 s.
	StallTimeout time.Duration `json:"stall_timeout,omitempty"`
	// MaxFailures is how many failures in a row a node tolerates before it gives the unit back and
	// gets an embargo for it; 0 counts as 5, -1 means never give up.
	MaxFailures int `json:"max_failures,omitempty"`
	// OnAbandoned says what the node does when an agent has ignored its cancelled context for
	// StopTimeout: "" goes on, "exit" ends the process.
	OnAbandoned string `json:"on_abandoned,omitempty"`
	// NoRebalance keeps running units where they are when loads become uneven, for agents whose start
	// is expensive. They still move when their node drains, dies or fails.
	NoRebalance bool `json:"no_rebalance,omitempty"`
}

// WithDefaults returns the spec with the documented defaults in place of zeros.
func (s Spec) WithDefaults() Spec {
	s.Kind = cmp.Or(s.Kind, Kind(s.ID))
	s.Instances = cmp.Or(s.Instances, 1)
	s.Weight = cmp.Or(s.Weight, 1)
	s.Spread = cmp.Or(s.Spread, "zone")
	s.MaxFailures = cmp.Or(s.MaxFailures, 5)
	return s
}

// Keyed is a value of Spec.Instances. It declares a unit for each key that the store has for the daemon (storage.KeyStore).
const Keyed = -1

// Keyed reports whether the daemon's units are named by keys.
func (s Spec) Keyed() bool { return s.Instances == Keyed }

// The bounds of Spec.Instances and Spec.Weight.
const (
	MaxInstances = 100_000
	MaxWeight    = 1 << 30
)

// Validate reports why a spec cannot be declared, or nil.
func (s Spec) Validate() error {
	if err := s.ID.Validate(); err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("daemon %s: "+format, append([]any{s.ID}, args...)...))
	}
	if s.ID.Group() != "" {
		bad("id is %q, want it without @ and what follows: the node's own group is added to it", s.ID)
	}
	if s.Revision < 0 {
		bad("revision is %d, want 0 (the default) or more", s.Revision)
	}
	if s.Instances < 0 && !s.Keyed() || s.Instances > MaxInstances {
		bad("instances is %d, want 1 to %d, or %d for one unit for each key", s.Instances, MaxInstances, Keyed)
	}
	if s.Weight < 0 || s.Weight > MaxWeight {
		bad("weight is %d, want 1 to %d", s.Weight, MaxWeight)
	}
	if s.MaxFailures < -1 {
		bad("max_failures is %d, want -1 (never give up) or more", s.MaxFailures)
	}
	if s.OnAbandoned != "" && s.OnAbandoned != "exit" {
		bad("on_abandoned is %q, want \"\" or \"exit\"", s.OnAbandoned)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"acknowledge_timeout", s.AcknowledgeTimeout}, {"drain_timeout", s.DrainTimeout}, {"stall_timeout", s.StallTimeout},
	} {
		if f.value < 0 {
			bad("%s is %v, want 0 (the default) or more", f.name, f.value)
		}
	}
	return errors.Join(errs...)
}

// Units lists the units that the spec declares; none if the daemon is keyed.
func (s Spec) Units() []Unit {
	if s.Keyed() {
		return nil
	}
	out := make([]Unit, s.WithDefaults().Instances)
	for i := range out {
		out[i] = Unit{Daemon: s.ID, Index: i}
	}
	return out
}

// Advert is everything a node advertises when it registers. Equal adverts have equal text
// ([Advert.Encode]), so replicas of one binary share one hash.
type Advert struct {
	Traits node.Traits `json:"traits"`
	Kinds  []Kind      `json:"kinds,omitempty"`
	Specs  []Spec      `json:"specs,omitempty"`
}

// RunsKind reports whether the node can run daemons of kind k.
func (a Advert) RunsKind(k Kind) bool { return slices.Contains(a.Kinds, k) }

// Encode returns the part of the advert that replicas share: kinds and specs, sorted, without
// traits.
func (a Advert) Encode() []byte {
	a.Traits = node.Traits{}
	a.Kinds, a.Specs = slices.Clone(a.Kinds), slices.Clone(a.Specs)
	slices.Sort(a.Kinds)
	slices.SortFunc(a.Specs, func(x, y Spec) int { return cmp.Compare(x.ID, y.ID) })
	text, err := json.Marshal(a)
	if err != nil {
		panic("daemon: an advert holds only plain values: " + err.Error())
	}
	return text
}
