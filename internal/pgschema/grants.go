package pgschema

import "strings"

// Right is what a role may do with one object.
type Right struct {
	Privileges string // in the syntax of GRANT: select, insert (a, b)
	Object     string // with its kind: table "s"."t"
}

// Grants returns the statements that give a role usage of a schema, and rights in it. They may be
// repeated.
func Grants(schema, role string, rights []Right) string {
	var out strings.Builder
	out.WriteString("grant usage on schema " + quoted(schema) + " to " + quoted(role) + ";\n")
	for _, r := range rights {
		out.WriteString("grant " + r.Privileges + " on " + r.Object + " to " + quoted(role) + ";\n")
	}
	return out.String()
}
