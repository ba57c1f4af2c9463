package daemon

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Command is an operator's request, stored as a row. It is open until DoneAt is set.
//
// A command that changes something once, such as CommandMove, is done when the change has happened or was refused.
// A standing command, such as CommandCordon, stays open for as long as it is in force. What is cordoned, drained,
// paused or pinned is therefore known from the open commands alone.
type Command struct {
	ID       string          `json:"id"`
	Kind     CommandKind     `json:"kind"`
	Actor    string          `json:"actor,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Term     int64           `json:"term,omitempty"` // expected; refused if another term leads by then
	Cooldown time.Duration   `json:"cooldown,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // a CommandArgs

	CreatedAt time.Time `json:"created_at"`
	DoneAt    time.Time `json:"done_at,omitzero"`
	// Result begins with one of the words Result…, and may go on with ": " and details. It is empty until the leader
	// has read the command.
	Result string `json:"result,omitempty"`
}

// CommandKind is what a command asks for.
type CommandKind string

// The kinds of command. Cordon, drain, pause and pin are standing.
const (
	CommandResign    CommandKind = "leader.resign"
	CommandRelease   CommandKind = "leader.release" // releases the leader's brake
	CommandCordon    CommandKind = "node.cordon"    // the node gets no further units
	CommandUncordon  CommandKind = "node.uncordon"  // ends cordon and drain
	CommandDrain     CommandKind = "node.drain"     // cordon, give away all units, and do not lead
	CommandForget    CommandKind = "node.forget"    // ends every standing command about a node that is gone
	CommandPause     CommandKind = "daemon.pause"
	CommandResume    CommandKind = "daemon.resume"
	CommandRestart   CommandKind = "daemon.restart"
	CommandMove      CommandKind = "daemon.move"
	CommandRebalance CommandKind = "daemon.rebalance" // makes loads even, as after a node has joined
	CommandPin       CommandKind = "daemon.pin"
	CommandUnpin     CommandKind = "daemon.unpin"
)

// Verb returns the last word of the kind: "cordon".
func (k CommandKind) Verb() string { return string(k[strings.LastIndexByte(string(k), '.')+1:]) }

// Event returns the kind of the events about such commands: "operator.cordon".
func (k CommandKind) Event() EventKind { return EventKind("operator." + k.Verb()) }

// ForNodes reports whether nodes act on the command, and not only the leader's passes. Every heartbeat's reply has the
// open commands of these kinds.
func (k CommandKind) ForNodes() bool { return k == CommandResign || k == CommandDrain }

// Stands reports whether such a command stays in force until another one lifts it.
func (k CommandKind) Stands() bool {
	switch k {
	case CommandCordon, CommandDrain, CommandPause, CommandPin:
		return true
	}
	return false
}

// The words with which a result begins.
const (
	ResultDone     = "done"
	ResultConflict = "conflict" // another term or generation than expected
	ResultRefused  = "refused"
	ResultInForce  = "in force" // of a standing command, and of a move or restart that is under way
	ResultDrained  = "drained"  // of a drain: the node has no units and does not lead
	ResultLifted   = "lifted"   // of a standing command that another one ended
)

// CommandArgs is what a command is about. Each kind uses some of the fields.
type CommandArgs struct {
	Node string `json:"node,omitempty"` // name of the node
	// Daemon is a whole daemon. With Index or Key it is one unit of it.
	Daemon ID     `json:"daemon,omitempty"`
	Index  *int   `json:"index,omitempty"`
	Key    string `json:"key,omitempty"`
	To     string `json:"to,omitempty"` // name of the node that is to get the unit or the term
	// Generation is the generation that the unit is expected to have.
	Generation int64 `json:"generation,omitempty"`

	// Role and Address say how the actor came to give the command: by which role, from where. Before says in words what was
	// so when it was given, such as "acme:mail/0 active on node-1, generation 6". They are for the history, and decide nothing.
	Role    string `json:"role,omitempty"`
	Address string `json:"address,omitempty"`
	Before  string `json:"before,omitempty"`
}

// Unit returns the unit that the arguments name; the zero Unit if they name none.
func (a CommandArgs) Unit() Unit {
	switch {
	case a.Key != "":
		return Unit{Daemon: a.Daemon, Key: a.Key}
	case a.Index != nil:
		return Unit{Daemon: a.Daemon, Index: *a.Index}
	}
	return Unit{}
}

// SetUnit makes the arguments name a unit.
func (a *CommandArgs) SetUnit(u Unit) {
	a.Daemon, a.Index, a.Key = u.Daemon, nil, u.Key
	if u.Key == "" {
		a.Index = &u.Index
	}
}

// Encode returns the arguments as a command carries them; nil if there are none.
func (a CommandArgs) Encode() json.RawMessage {
	if a == (CommandArgs{}) {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		panic("daemon: strings and numbers always marshal: " + err.Error())
	}
	return text
}

// Arguments decodes the command's arguments.
func (c Command) Arguments() (CommandArgs, error) {
	var args CommandArgs
	if len(c.Args) == 0 {
		return args, nil
	}
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return args, fmt.Errorf("arguments of command %s: %w", c.ID, err)
	}
	return args, nil
}

// Outcome returns the first word of the result, one of Result…; empty if there is none.
func (c Command) Outcome() string {
	word, _, _ := strings.Cut(c.Result, ":")
	return word
}
