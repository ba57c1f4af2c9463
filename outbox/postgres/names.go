package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgschema"
)

// names holds the schema and the prefix of the tables.
type names struct{ schema, prefix string }

// longestName is the longest table name that gets the prefix.
const longestName = "outbox_subscription"

func (n names) validate() error {
	return pgschema.CheckNames("outbox", n.schema, n.prefix, longestName)
}

// table returns the quoted, qualified name of a table, sequence or function.
func (n names) table(name string) string { return pgx.Identifier{n.schema, n.prefix + name}.Sanitize() }

// scope identifies the log among others in the same database.
func (n names) scope() string { return "emitd." + n.schema + "." + n.prefix + "outbox" }

// locks is the class of the log's advisory locks on shards. The class of its locks on keys is one higher.
func (n names) locks() int32 {
	sum := sha256.Sum256([]byte(n.scope()))
	return int32(binary.BigEndian.Uint32(sum[:4]) >> 2) // 30 bits
}

// channel is the channel of the log's notifications.
func (n names) channel() string { return pgschema.Channel(n.scope()) }

var (
	ours  = regexp.MustCompile(`~\w+`)
	known = sync.Map{} // a statement's text before its names are filled in, by names → after
)

// q replaces the table names in a statement, written ~outbox_cursor, by quoted and qualified names.
func (n names) q(text string) string {
	type key struct {
		n    names
		text string
	}
	if done, ok := known.Load(key{n, text}); ok {
		return done.(string)
	}
	done := ours.ReplaceAllStringFunc(text, func(name string) string { return n.table(name[1:]) })
	known.Store(key{n, text}, done)
	return done
}
