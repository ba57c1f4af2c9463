// Package body has the JSON bodies of the admin API that both sides use: coordinator/admin answers them, and the command
// line sends and reads them with --addr. The API's document is made from these types and their comments.
package body

import (
	"net/http"
	"time"

	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// CommandRequest is a command as a caller gives it.
type CommandRequest struct {
	// Kind is what to do: leader.resign, leader.release, node.cordon, node.uncordon, node.drain, node.forget, daemon.pause,
	// daemon.resume, daemon.restart, daemon.move, daemon.rebalance, daemon.pin or daemon.unpin.
	Kind daemon.CommandKind `json:"kind"`
	// Node is the name of the node that the command is about (node.…).
	Node string `json:"node,omitempty"`
	// Daemon is the daemon that the command is about (daemon.pause and daemon.resume).
	Daemon daemon.ID `json:"daemon,omitempty"`
	// Unit is the unit that the command is about (daemon.…).
	Unit daemon.Unit `json:"unit,omitzero"`
	// To is the name of the node that is to get the unit (daemon.move, daemon.pin) or the term (leader.resign).
	To string `json:"to,omitempty"`
	// Term is the number of the term that is expected to lead. If another one does, nothing is changed (409).
	Term int64 `json:"term,omitempty"`
	// Generation is the generation that the unit is expected to have (daemon.move, daemon.restart). If it has another
	// one, nothing is changed (409).
	Generation int64 `json:"generation,omitempty"`
	// CooldownMS is for how many milliseconds the leader does not campaign again (leader.resign).
	CooldownMS int64 `json:"cooldown_ms,omitempty"`
	// Actor is who asks, for the history. It does not count if the server knows the caller.
	Actor string `json:"actor,omitempty"`
	// Reason is why, for the history and wherever the command is in force.
	Reason string `json:"reason,omitempty"`
	// DryRun changes nothing and only returns what would move.
	DryRun bool `json:"dry_run,omitempty"`
}

// CommandAnswer is a command after it was given.
type CommandAnswer struct {
	// Done says that the command was carried out or, for a standing command, is in force. Otherwise it is stored and
	// waits for the leader (status 202); call again with its ID as Idempotency-Key to wait for it.
	Done bool `json:"done"`
	// Command is the command as it is stored; null for a dry run.
	Command *daemon.Command `json:"command"`
	// Moves is what would move; empty unless this is a dry run.
	Moves []operator.Move `json:"moves"`
}

// StatusCode returns the status of the answer.
func (o *CommandAnswer) StatusCode() int {
	if o.Command != nil && !o.Done {
		return http.StatusAccepted
	}
	return http.StatusOK
}

// LeaderAnswer is the leader.
type LeaderAnswer struct {
	At     view.Time    `json:"at"`     // the store's clock
	Leader *view.Leader `json:"leader"` // null if there is none
}

// TermPage is a page of terms.
type TermPage struct {
	At    view.Time   `json:"at"` // the store's clock
	Terms []view.Term `json:"terms"`
	// Cursor is that of the next page; null at the end. A page may have fewer terms than asked for, even none, and a cursor
	// all the same: a call reads only a part of a long history, and later ones read on.
	Cursor *string `json:"cursor"`
}

// LockPage is a page of named locks.
type LockPage struct {
	At     view.Time   `json:"at"` // the store's clock
	Locks  []view.Lock `json:"locks"`
	Cursor *string     `json:"cursor"` // of the next page; null at the end
}

// OutboxAnswer is the outbox.
type OutboxAnswer struct {
	Outbox *view.Outbox `json:"outbox"` // null if there is none
}

// MessageFilter selects messages.
type MessageFilter struct {
	// Kind selects messages that are waiting (for another attempt), held (for an operator), behind (an earlier message of
	// the key) or dead.
	Kind outbox.Kind `json:"kind,omitempty" query:"kind" enum:"waiting,held,behind,dead"`
	// Key selects the messages of a key.
	Key string `json:"key,omitempty" query:"key"`
	// Topic selects the messages of a topic, or of the topics with a prefix that ends in *.
	Topic string `json:"topic,omitempty" query:"topic"`
	// Cause selects the messages whose cause contains this text.
	Cause string `json:"cause,omitempty" query:"cause"`
	// Since selects the messages that were parked or died at this time or later.
	Since time.Time `json:"since,omitzero" query:"since"`
	// Until selects the messages that were parked or died before this time.
	Until time.Time `json:"until,omitzero" query:"until"`
}

// MessagePage is a page of messages.
type MessagePage struct {
	Messages []view.OutboxMessage `json:"messages"`
	Cursor   *string              `json:"cursor"` // of the next page; null at the end
}

// MessageAnswer is one message.
type MessageAnswer struct {
	Message view.OutboxMessage `json:"message"`
}

// OutboxAction is what to do with a subscription.
type OutboxAction struct {
	// Action is what to do: retry, skip or purge messages, or replay, pause, resume or forget the subscription.
	Action string `json:"action"`
	// Seqs are the numbers of messages (retry, skip, purge).
	Seqs []int64 `json:"seqs,omitempty"`
	// Select selects messages instead (retry, skip, purge).
	Select *MessageFilter `json:"select,omitempty"`
	// All selects all messages to which the action applies by default.
	All bool `json:"all,omitempty"`
	// Replay says what is delivered again (replay).
	Replay *ReplayRange `json:"replay,omitempty"`
	// DryRun changes nothing and only counts the messages.
	DryRun bool `json:"dry_run,omitempty"`
}

// ReplayRange selects the messages that are delivered again. With only after or since, it is everything from there on,
// before later messages. Otherwise it is copies of what all fields together select, at most 100,000.
type ReplayRange struct {
	// After selects the messages after this number; 0 is from the beginning.
	After *int64 `json:"after,omitempty"`
	// UpTo selects the messages up to this number.
	UpTo int64 `json:"up_to,omitempty"`
	// Since begins with the first message that was published at this time or later.
	Since time.Time `json:"since,omitzero"`
	// Until ends with the last message that was published before this time.
	Until time.Time `json:"until,omitzero"`
	// Key selects the messages of a key.
	Key string `json:"key,omitempty"`
	// Topics selects the messages of topics, or of those with a prefix that ends in *.
	Topics []string `json:"topics,omitempty"`
}

// OutboxActionAnswer says what was done.
type OutboxActionAnswer struct {
	Subscription string `json:"subscription"`
	Action       string `json:"action"`
	DryRun       bool   `json:"dry_run"`
	// Count is how many messages (for retry: keys and messages) were changed or, for a dry run, would be. A replay counts
	// up to 100,000.
	Count int `json:"count"`
	// Counts has how many there are of each kind, for messages that are selected. A replay has those that are delivered
	// once more and, as waiting, those that were not delivered yet and come anyway.
	Counts map[outbox.Kind]int `json:"counts,omitempty"`
	// After is the number of the message after which a replay begins.
	After int64 `json:"after,omitempty"`
}
