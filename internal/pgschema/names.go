package pgschema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// validName is the allow-list of schema and prefix, because statements contain them as names.
var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// maxName is how many bytes a name may have in Postgres.
const maxName = 63

// CheckNames returns what is wrong with the schema and the prefix of a section of the
// configuration. Longest is the longest name that gets the prefix.
func CheckNames(section, schema, prefix, longest string) error {
	if !validName.MatchString(schema) {
		return fmt.Errorf("%s.schema is %q, want %s", section, schema, validName)
	}
	if prefix != "" && !validName.MatchString(prefix) {
		return fmt.Errorf("%s.prefix is %q, want empty or %s", section, prefix, validName)
	}
	if len(prefix)+len(longest) > maxName {
		return fmt.Errorf("%s.prefix is %q, %d characters; names would be longer than Postgres' %d with more than %d",
			section, prefix, len(prefix), maxName, maxName-len(longest))
	}
	return nil
}

// Channel returns the name of the notifications of a scope. A name that is too long keeps its
// beginning, for people, and gets a hash.
func Channel(scope string) string {
	if len(scope) <= maxName {
		return scope
	}
	sum := sha256.Sum256([]byte(scope))
	return scope[:46] + "_" + hex.EncodeToString(sum[:8])
}

// Literal quotes a string.
func Literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
