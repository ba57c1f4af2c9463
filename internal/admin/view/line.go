package view

import (
	"bytes"
	"io"
	"strconv"

	"github.com/emitd/emitd/daemon"
)

// writeLine writes the status as encoding/json would. A large cluster has 10,000 units, and for each of their fields
// encoding/json asks what it is; here that is written down. Nothing of the size of the status is allocated.
func (s *Status) writeLine(w io.Writer) error {
	l := &line{to: w, text: make([]byte, 0, 2*lineBlock)}
	l.raw(`{"cluster":`).value(s.Cluster)
	l.raw(`,"at":`).time(s.At)
	l.raw(`,"store":`).value(s.Store)
	l.raw(`,"leader":`).value(s.Leader)
	l.raw(`,"nodes":`)
	list(l, s.Nodes, l.node)
	l.raw(`,"daemons":`)
	list(l, s.Daemons, l.unit)
	l.raw(`,"outbox":`).value(s.Outbox)
	l.raw(`,"queues":`).value(s.Queues)
	if len(s.Orders) > 0 {
		l.raw(`,"orders":`).value(s.Orders)
	}
	l.raw(`,"attention":`).value(s.Attention)
	l.raw("}\n")
	l.flush()
	return l.err
}

// lineBlock is how much is written at once, in bytes.
const lineBlock = 32 << 10

// line is a line of JSON that is written in blocks.
type line struct {
	to   io.Writer
	text []byte // that was not written yet
	err  error  // the first one; nothing is written after it

	kinds     []daemon.Kind // of the last node
	kindsText []byte        // the same as JSON
}

// flush writes what is there.
func (l *line) flush() {
	if l.err == nil {
		_, l.err = l.to.Write(l.text)
	}
	l.text = l.text[:0]
}

// raw writes what is JSON already.
func (l *line) raw(text string) *line {
	l.text = append(l.text, text...)
	return l
}

// list writes a list.
func list[T any](l *line, all []T, write func(*T)) {
	if all == nil {
		l.raw("null")
		return
	}
	l.raw("[")
	for i := range all {
		if i > 0 {
			l.raw(",")
		}
		write(&all[i])
		if len(l.text) >= lineBlock {
			l.flush()
		}
	}
	l.raw("]")
}

func (l *line) node(n *Node) {
	l.raw(`{"name":`).string(n.Name)
	l.raw(`,"id":`).string(string(n.ID))
	l.raw(`,"incarnation":`).string(string(n.Incarnation))
	l.raw(`,"state":`).string(string(n.State))
	l.raw(`,"leader":`).truth(n.Leader)
	l.raw(`,"group":`).string(n.Group)
	l.raw(`,"version":`).string(n.Version)
	l.raw(`,"address":`).string(n.Address)
	l.raw(`,"last_heartbeat_at":`).time(n.LastHeartbeatAt)
	l.raw(`,"registered_at":`).time(n.RegisteredAt)
	l.raw(`,"load":`).value(n.Load)
	l.raw(`,"capacity":`).number(int64(n.Capacity))
	l.raw(`,"max_weight":`).number(int64(n.MaxWeight))
	l.raw(`,"units":`).number(int64(n.Units))
	l.raw(`,"labels":`).value(n.Labels)
	l.raw(`,"never_lead":`).truth(n.NeverLead)
	l.raw(`,"no_daemons":`).truth(n.NoDaemons)
	l.raw(`,"kinds":`).kindsOf(n)
	l.raw(`,"reason":`).string(n.Reason)
	if len(n.Orders) > 0 {
		l.raw(`,"orders":`).value(n.Orders)
	}
	l.raw("}")
}

// kindsOf writes the kinds of a node. Nodes that run the same program have the same list of them, often a long one.
func (l *line) kindsOf(n *Node) {
	same := len(n.Kinds) > 0 && len(n.Kinds) == len(l.kinds) && &n.Kinds[0] == &l.kinds[0]
	if same {
		l.text = append(l.text, l.kindsText...)
		return
	}
	begun := len(l.text)
	l.value(n.Kinds)
	l.kinds, l.kindsText = n.Kinds, append(l.kindsText[:0], l.text[begun:]...)
}

func (l *line) unit(u *Unit) {
	l.raw(`{"daemon":`).string(string(u.Daemon))
	l.raw(`,"unit":`).string(unitText(u))
	l.raw(`,"state":`).string(string(u.State))
	l.raw(`,"node":`).string(u.Node)
	l.raw(`,"node_id":`).string(string(u.NodeID))
	l.raw(`,"generation":`).number(u.Generation)
	l.raw(`,"since":`).time(u.Since)
	l.raw(`,"reason":`).string(u.Reason)
	l.raw(`,"failures":`).number(int64(u.Failures))
	l.raw(`,"error":`).string(u.Error)
	l.raw(`,"failing_since":`).time(u.FailingSince)
	l.raw(`,"retry_at":`).time(u.RetryAt)
	l.raw(`,"forced":`).truth(u.Forced)
	l.raw(`,"deadline":`).time(u.Deadline)
	l.raw(`,"forced_at":`).time(u.ForcedAt)
	if len(u.Orders) > 0 {
		l.raw(`,"orders":`).value(u.Orders)
	}
	if u.Schedule == nil {
		l.raw(`,"schedule":null}`)
		return
	}
	l.raw(`,"schedule":`).value(u.Schedule)
	l.raw("}")
}

// unitText returns the unit as text; empty if it names nothing.
func unitText(u *Unit) string {
	if u.Unit.IsZero() {
		return ""
	}
	return u.Unit.String()
}

func (l *line) number(n int64) { l.text = strconv.AppendInt(l.text, n, 10) }

func (l *line) truth(b bool) { l.text = strconv.AppendBool(l.text, b) }

func (l *line) time(t Time) {
	if t.IsZero() {
		l.raw("null")
		return
	}
	l.text = append(l.text, '"')
	text, err := t.UTC().AppendText(l.text)
	if err != nil {
		l.fail(err)
		return
	}
	l.text = text
	l.text = append(l.text, '"')
}

// string writes a string. What is not plain ASCII is rare, and left to encoding/json.
func (l *line) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			l.value(s)
			return
		}
	}
	l.text = append(l.text, '"')
	l.text = append(l.text, s...)
	l.text = append(l.text, '"')
}

// value writes anything, by encoding/json.
func (l *line) value(v any) {
	b := bytes.NewBuffer(l.text)
	if err := encode(b, v, ""); err != nil {
		l.fail(err)
		return
	}
	l.text = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// fail ends the line: no block follows, so what was written is no JSON.
func (l *line) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}
