package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/internal/pgschema"
)

// Roles names the roles that programs run as. None of them may create objects. An empty name gets no
// grants. Two fields may name the same role.
type Roles struct {
	// Relay is the role of a [Log], emitd's outbox.url: it relays, sweeps, runs operators' commands and
	// publishes. It can lose messages, because it moves cursors, and it can stop publishing, because it
	// drops partitions of the log. It cannot touch any other table of the owner.
	Relay string
	// Publisher is the role that publishes, by [Publisher] or the functions outbox_publish and outbox_wake: it
	// may insert into the columns of the log that make up a message. It can read no message, and draws ids
	// only by publishing.
	Publisher string
	// Reader may read everything, payloads included, and changes nothing.
	Reader string
}

// message lists the columns that publishers insert.
const message = "shard, dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

// readable lists all relations of a log, in the order of the migration.
var readable = []string{
	"outbox", "outbox_id", "outbox_partition", "outbox_state", "outbox_delayed", "outbox_subscription", "outbox_cursor",
	"outbox_lane", "outbox_parked", "outbox_dead", "outbox_migration",
}

// privileged lists the functions that run with the rights of their owner, with their argument types.
func (n names) privileged() []string {
	return []string{
		n.table("outbox_extend") + "(bigint, bigint)", n.table("outbox_pass") + "()", n.table("outbox_close") + "(bigint)",
		n.table("outbox_empty") + "(bigint, bigint)", n.table("outbox_drop") + "(bigint, boolean)", n.table("outbox_begin_era") + "(integer, text)",
	}
}

// GrantSQL returns the statements that give roles the rights they need, and no others. The schema's owner
// runs them after [Migrate], and again after migrating to a later version. They may be repeated.
func GrantSQL(cfg Config, roles Roles) (string, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && roles == (Roles{}) {
		err = errors.New("no role is given")
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
		{Privileges: "execute", Object: "function " + n.table("outbox_wake")},
	}
}

func (n names) ofReader() (rights []pgschema.Right) {
	for _, table := range readable {
		rights = append(rights, n.right("select", table)) // "on table" covers a sequence too
	}
	return rights
}

// ofRelay may lock rows of outbox_delayed, through one updatable column, but no table of the log as a
// whole.
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
