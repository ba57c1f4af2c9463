package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/internal/pgschema"
)

// Roles are the roles that programs run as. None of them may create anything. An empty name grants
// nothing. One role may appear twice.
type Roles struct {
	// Node is the role of a [Store], emitd's store.url: it coordinates. Every process with it can
	// lead and write anything, and the other nodes trust what it writes.
	Node string
	// App is the role that runs transactions behind a unit's fence ([Store.Fence], [Store.InTx]).
	// It can hold a fence but not raise it.
	App string
	// Reader is the role that can read everything and change nothing.
	Reader string
}

// GrantSQL returns the statements that give the roles what they need, and nothing else. The
// schema's owner runs them after [Migrate], and again after a later version of it. They may be
// repeated.
func GrantSQL(cfg Config, roles Roles) (string, error) {
	cfg.URL = "postgres://" // any: only the names count
	cfg, err := cfg.withDefaults()
	if err == nil && roles == (Roles{}) {
		err = errors.New("no role is given")
	}
	if err != nil {
		return "", fmt.Errorf("print the store's grants: %w", err)
	}
	n := cfg.names()
	var out strings.Builder
	if roles.Node != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.Node, n.ofNode()))
	}
	if roles.App != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.App, n.ofApp()))
	}
	if roles.Reader != "" {
		out.WriteString(pgschema.Grants(n.schema, roles.Reader, n.ofReader()))
	}
	return out.String(), nil
}

func (n names) right(privileges, table string) pgschema.Right {
	return pgschema.Right{Privileges: privileges, Object: "table " + n.table(table)}
}

func (n names) ofReader() (rights []pgschema.Right) {
	for _, table := range tables {
		rights = append(rights, n.right("select", table))
	}
	return rights
}

// ofNode allows inserts into tables with many rows, and deletes where the sweeper deletes.
func (n names) ofNode() []pgschema.Right {
	rights := n.ofReader()
	for _, r := range []struct{ privileges, tables string }{
		{"insert, update, delete", "node advert command lock unit fence unit_state"},
		{"insert, delete", "event"},
		{"update", "term lease counter"},
	} {
		for table := range strings.FieldsSeq(r.tables) {
			rights = append(rights, n.right(r.privileges, table))
		}
	}
	for _, function := range []string{"heartbeat_8", "register_8"} {
		rights = append(rights, pgschema.Right{Privileges: "execute", Object: "function " + n.table(function)})
	}
	return rights
}

// ofApp allows locking a fence's row. Postgres requires the right to update for that; it is given
// for a column that decides nothing.
func (n names) ofApp() []pgschema.Right {
	return []pgschema.Right{n.right("select, update (stamped_at)", "fence")}
}
