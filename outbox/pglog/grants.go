package pglog

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/internal/pgschema"
)

// Roles are the roles that programs run as, none of which may create anything. An empty name grants
// nothing. A role may be named twice.
type Roles struct {
	// Relay relays, sweeps, operates and publishes: the role of a [Log], emitd's outbox.url. It can lose
	// messages, as it moves the cursors, and stop publishing, as it drops partitions of the log. It
	// cannot touch any other table of the owner.
	Relay string
	// Publisher publishes: into the log's columns that are a message, by [Publisher] or outbox_publish. It
	// sees no message and draws no id but by publishing.
	Publisher string
	// Reader sees everything, payloads included, and changes nothing.
	Reader string
}

// message lists the columns that publishers fill in.
const message = "shard, dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

// readable are all relations of a log, in the order of the migration.
var readable = []string{
	"outbox", "outbox_id", "outbox_partition", "outbox_state", "outbox_delayed", "outbox_subscription", "outbox_cursor",
	"outbox_lane", "outbox_parked", "outbox_dead", "outbox_migration",
}

// privileged are the functions that run with the rights of their owner, with their arguments.
func (n names) privileged() []string {
	return []string{
		n.table("outbox_extend") + "(bigint, bigint)", n.table("outbox_pass") + "()", n.table("outbox_close") + "(bigint)",
		n.table("outbox_empty") + "(bigint, bigint)", n.table("outbox_drop") + "(bigint, boolean)", n.table("outbox_begin_era") + "(integer, text)",
	}
}

// GrantSQL returns the statements that give roles what they need, and nothing else; the schema's owner
// runs them after [Migrate], and again after a later version of it. They may be repeated.
func GrantSQL(cfg Config, roles Roles) (string, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && roles == (Roles{}) {
		err = errors.New("no role is named")
	}
	if err != nil {
		return "", fmt.Errorf("print the outbox's grants: %w", err)
	}
	n := cfg.names()
	var out strings.Builder
	if roles.Relay != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.Relay, n.ofRelay()))
	}
	if roles.Publisher != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.Publisher, n.ofPublisher()))
	}
	if roles.Reader != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.Reader, n.ofReader()))
	}
	return out.String(), nil
}

func (n names) right(privileges, table string) pgschema.Right {
	return pgschema.Right{Privileges: privileges, Object: "table " + n.table(table)}
}

func (n names) ofPublisher() []pgschema.Right {
	return []pgschema.Right{
		n.right("insert ("+message+")", "outbox"),
		n.right("insert (not_before, "+message+")", "outbox_delayed"),
		{Privileges: "execute", Object: "function " + n.table("outbox_publish")},
	}
}

func (n names) ofReader() (rights []pgschema.Right) {
	for _, table := range readable {
		rights = append(rights, n.right("select", table)) // "on table" takes a sequence too
	}
	return rights
}

// ofRelay may lock rows of outbox_delayed by one of its columns, and no table of the log as a whole.
func (n names) ofRelay() []pgschema.Right {
	rights := append(n.ofReader(), n.ofPublisher()...)
	rights = append(rights,
		n.right("insert (created_at)", "outbox"),
		n.right("update (sysid, drawn, drawn_at, peak)", "outbox_state"),
		n.right("update (not_before), delete", "outbox_delayed"),
	)
	for _, table := range []string{"outbox_subscription", "outbox_cursor", "outbox_lane", "outbox_parked", "outbox_dead"} {
		rights = append(rights, n.right("insert, update, delete", table))
	}
	for _, function := range n.privileged() {
		rights = append(rights, pgschema.Right{Privileges: "execute", Object: "function " + function})
	}
	return rights
}
