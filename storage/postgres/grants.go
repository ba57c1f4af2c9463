package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/internal/pgschema"
)

// Roles are the roles that programs run as, none of which may create anything. An empty name grants
// nothing. A role may be named twice.
type Roles struct {
	// Node coordinates: the role of a [Store], emitd's store.url. Every process with it can lead, and what
	// it writes is believed.
	Node string
	// App runs transactions behind a unit's fence ([Store.Fence], [Store.InTx]). It can hold a fence up
	// and not raise it.
	App string
	// Reader sees everything and changes nothing.
	Reader string
}

// GrantSQL returns the statements that give roles what they need, and nothing else; the schema's owner
// runs them after [Migrate], and again after a later version of it. They may be repeated.
func GrantSQL(cfg Config, roles Roles) (string, error) {
	cfg.URL = "postgres://" // any: only the names count
	cfg, err := cfg.withDefaults()
	if err == nil && roles == (Roles{}) {
		err = errors.New("no role is named")
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

// ofNode lets rows be made where there are many, and removed where the sweeper does that.
func (n names) ofNode() []pgschema.Right {
	rights := n.ofReader()
	for _, r := range []struct{ privileges, tables string }{
		{"insert, update, delete", "node advert command lock"},
		{"insert, update", "unit fence"},
		{"insert, delete", "event"},
		{"update", "term lease counter"},
	} {
		for table := range strings.FieldsSeq(r.tables) {
			rights = append(rights, n.right(r.privileges, table))
		}
	}
	return append(rights, pgschema.Right{Privileges: "execute", Object: "function " + n.table("heartbeat_1")})
}

// ofApp may lock a fence's row, for which Postgres wants a right to update; of a column that decides
// nothing.
func (n names) ofApp() []pgschema.Right {
	return []pgschema.Right{n.right("select, update (stamped_at)", "fence")}
}
