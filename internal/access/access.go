// Package access says who may do what: roles, what they are limited to, and the file that has the tokens.
//
// A caller is known by a token, by the name in its client certificate, or by the name that a proxy has found out. The access
// file gives each of them grants:
//
//	# a token; the text of the token is in no file
//	token name=ci roles=produce@queue=mail.*,read sha256=… session=… created=2030-01-31T09:00:00Z expires=2030-05-01T09:00:00Z
//	certificate name=ops.example.org roles=operate
//	user name=alice roles=admin
//	0123456789abcdef0123456789abcdef
//
// A line of one word is a token as it is sent, with the role admin and without a name.
//
// Tokens of this package are 256 random bits, so a fast hash is right for them: nobody can try all of them, whatever a hash
// costs, and a slow one would only help who sends wrong tokens to keep a node busy. The package is pure.
package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a caller may do.
type Role string

// The roles. Operate includes read, and admin includes all others.
const (
	Read    Role = "read"    // see everything, change nothing
	Produce Role = "produce" // submit jobs
	Consume Role = "consume" // claim jobs and settle claims
	Operate Role = "operate" // give operators' commands; change what others have submitted
	Admin   Role = "admin"   // everything: also declare and remove queues
)

// Roles lists the roles.
func Roles() []Role { return []Role{Read, Produce, Consume, Operate, Admin} }

// Includes reports whether the role allows what another one allows.
func (r Role) Includes(need Role) bool {
	return r == need || r == Admin || r == Operate && need == Read
}

// Need is what a call needs: a role, for a queue, for a subscription of the outbox or, if both are empty, for the whole
// cluster.
type Need struct {
	Role                Role
	Queue, Subscription string
}

// String says it in words, such as "operate for queue mail".
func (n Need) String() string {
	switch {
	case n.Queue != "":
		return fmt.Sprintf("%s for queue %.64s", n.Role, n.Queue)
	case n.Subscription != "":
		return fmt.Sprintf("%s for subscription %.64s", n.Role, n.Subscription)
	}
	return string(n.Role)
}

// Grant is a role and what it is limited to. Without patterns it is unlimited. A pattern is a name, or the beginning of
// names followed by *.
type Grant struct {
	Role                  Role
	Queues, Subscriptions []string
}

// Allows reports whether the grant is enough. A grant that is limited allows nothing that concerns the whole cluster.
func (g Grant) Allows(n Need) bool {
	switch {
	case !g.Role.Includes(n.Role):
		return false
	case len(g.Queues) == 0 && len(g.Subscriptions) == 0:
		return true
	case n.Queue != "":
		return matches(g.Queues, n.Queue)
	case n.Subscription != "":
		return matches(g.Subscriptions, n.Subscription)
	}
	return false
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		start, prefix := strings.CutSuffix(p, "*")
		return prefix && strings.HasPrefix(name, start) || p == name
	})
}

// String is the inverse of ParseGrant.
func (g Grant) String() string {
	out := string(g.Role)
	for _, q := range g.Queues {
		out += "@queue=" + q
	}
	for _, s := range g.Subscriptions {
		out += "@subscription=" + s
	}
	return out
}

// ParseGrant parses a role with its limits, such as operate@queue=mail.*@subscription=billing.
func ParseGrant(text string) (Grant, error) {
	role, limits, limited := strings.Cut(text, "@")
	g := Grant{Role: Role(role)}
	if !slices.Contains(Roles(), g.Role) {
		return g, fmt.Errorf("role is %.40q, want one of %s", role, roleNames())
	}
	if !limited {
		return g, nil
	}
	for limit := range strings.SplitSeq(limits, "@") {
		kind, pattern, _ := strings.Cut(limit, "=")
		if err := CheckPattern(pattern); err != nil {
			return g, fmt.Errorf("role %.100q: %w", text, err)
		}
		switch kind {
		case "queue":
			g.Queues = append(g.Queues, pattern)
		case "subscription":
			g.Subscriptions = append(g.Subscriptions, pattern)
		default:
			return g, fmt.Errorf("role %.100q has the limit %.40q, want queue=PATTERN or subscription=PATTERN", text, limit)
		}
	}
	return g, nil
}

func roleNames() string {
	var names []string
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// longestPattern bounds a pattern in bytes: it is longer than every name.
const longestPattern = 128

// CheckPattern refuses a pattern that is malformed.
func CheckPattern(p string) error {
	start := strings.TrimSuffix(p, "*")
	if p == "" || len(p) > longestPattern || strings.ContainsFunc(start, notInName) {
		return fmt.Errorf("pattern %.140q is malformed, want a name such as mail, or its beginning and *, such as mail.*", p)
	}
	return nil
}

// notInName reports whether a rune is in no name of a queue, a subscription or a caller.
func notInName(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune("._:/-", r)
}

// Kind is by what a caller is known.
type Kind string

// The kinds of caller.
const (
	Token       Kind = "token"
	Certificate Kind = "certificate" // by a name in a client certificate
	User        Kind = "user"        // by the name that a proxy states
)

// Caller is who makes a call, and what it may do.
type Caller struct {
	Name   string // empty for a token without a name
	Kind   Kind
	Grants []Grant
}

// Allows reports whether the caller may make a call.
func (c *Caller) Allows(n Need) bool {
	return slices.ContainsFunc(c.Grants, func(g Grant) bool { return g.Allows(n) })
}

// Everything are the grants of a caller that may do everything.
func Everything() []Grant { return []Grant{{Role: Admin}} }
