package pglog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// names says where the tables are.
type names struct{ schema, prefix string }

// validName is the allow-list of schema and prefix: they go into statements as names.
var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// longestName is the longest name that a prefix stands before.
const longestName = "outbox_subscription"

func (n names) validate() error {
	if !validName.MatchString(n.schema) {
		return fmt.Errorf("outbox.schema is %q, want %s", n.schema, validName)
	}
	if n.prefix != "" && !validName.MatchString(n.prefix) {
		return fmt.Errorf("outbox.prefix is %q, want empty or %s", n.prefix, validName)
	}
	if len(n.prefix)+len(longestName) > 63 {
		return fmt.Errorf("outbox.prefix is %q, %d characters; names would be longer than Postgres' 63 with more than %d",
			n.prefix, len(n.prefix), 63-len(longestName))
	}
	return nil
}

// table returns the quoted, qualified name of a table, sequence or function.
func (n names) table(name string) string { return pgx.Identifier{n.schema, n.prefix + name}.Sanitize() }

// scope names the log among others in the same database.
func (n names) scope() string { return "emitd." + n.schema + "." + n.prefix + "outbox" }

// locks is the class of the log's advisory locks on shards; the next number is that of keys.
func (n names) locks() int32 {
	sum := sha256.Sum256([]byte(n.scope()))
	return int32(binary.BigEndian.Uint32(sum[:4]) >> 2) //nolint:gosec // 30 bits
}

// channel names the notifications. Postgres allows 63 bytes; a longer name keeps its beginning, for
// people, and a hash.
func (n names) channel() string {
	name := n.scope()
	if len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:46] + "_" + hex.EncodeToString(sum[:8])
}

// literal quotes a string.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

var (
	ours  = regexp.MustCompile(`~\w+`)
	known = sync.Map{} // names and text → filled in
)

// q fills the names of tables, written ~outbox_cursor, into a statement.
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
