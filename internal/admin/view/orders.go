package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// Paused is the state shown for a unit without a holder that an operator has paused.
const Paused daemon.State = "paused"

// Order is a standing command that is in force.
type Order struct {
	Kind    daemon.CommandKind `json:"kind"`
	Command string             `json:"command"` // its ID
	Subject string             `json:"subject"` // name of a node, or a daemon or unit
	To      string             `json:"to,omitempty"`
	Actor   string             `json:"actor,omitempty"`
	Reason  string             `json:"reason,omitempty"`
	Since   Time               `json:"since"`
	Result  string             `json:"result"`

	args daemon.CommandArgs
}

// orders lists the standing commands that are in force.
func (v *viewer) orders() []Order {
	var out []Order
	for _, c := range v.plan.Standing() {
		args, _ := c.Arguments() // the plan has decoded them
		o := Order{
			Kind: c.Kind, Command: c.ID, Subject: args.Node, To: args.To, Actor: c.Actor, Reason: c.Reason,
			Since: Time{c.CreatedAt}, Result: c.Result, args: args,
		}
		switch {
		case args.Node != "":
		case !args.Unit().IsZero():
			o.Subject = args.Unit().String()
		default:
			o.Subject = string(args.Daemon)
		}
		out = append(out, o)
	}
	return out
}

// State returns the state that the order puts its subject into, such as "cordoned".
func (o Order) State() string {
	if o.Result == daemon.ResultDrained {
		return daemon.ResultDrained
	}
	return map[daemon.CommandKind]string{
		daemon.CommandCordon: "cordoned", daemon.CommandDrain: "draining", daemon.CommandPause: "paused", daemon.CommandPin: "pinned",
	}[o.Kind]
}

// text says what is in force, since when, by whom and why: "drained 5m ago by alice: new kernel".
func (o Order) text(now time.Time) string {
	word := o.State()
	if o.To != "" {
		word += " to " + o.To
	}
	text := fmt.Sprintf("%s %s ago", word, Short(max(now.Sub(o.Since.Time), 0)))
	if o.Actor != "" {
		text += " by " + o.Actor
	}
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	return text
}

// ofNode returns the orders about a node.
func ofNode(all []Order, name string) []Order {
	var out []Order
	for _, o := range all {
		if o.args.Node != "" && o.args.Node == name {
			out = append(out, o)
		}
	}
	return out
}

// ofUnit returns the orders about a unit or its daemon.
func ofUnit(all []Order, u daemon.Unit) []Order {
	var out []Order
	for _, o := range all {
		if o.args.Daemon == u.Daemon && (o.args.Unit().IsZero() || o.args.Unit() == u) {
			out = append(out, o)
		}
	}
	return out
}

// paused reports whether an order pauses the unit.
func (u *Unit) paused() bool {
	return slices.ContainsFunc(u.Orders, func(o Order) bool { return o.Kind == daemon.CommandPause })
}

// pausedSince returns since when an order pauses the unit.
func (u *Unit) pausedSince() time.Time {
	var first time.Time
	for _, o := range u.Orders {
		if o.Kind == daemon.CommandPause && (first.IsZero() || o.Since.Before(first)) {
			first = o.Since.Time
		}
	}
	return first
}

// texts joins the texts of orders.
func texts(all []Order, now time.Time) string {
	var out []string
	for _, o := range all {
		out = append(out, o.text(now))
	}
	return strings.Join(out, "; ")
}
