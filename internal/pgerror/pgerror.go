// Package pgerror makes errors of pgx safe to show. It puts them in one line and removes the secrets of a
// connection string, which some of them repeat. It also drops the chain of wrapped errors, which contains the
// configuration.
package pgerror

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Code returns an error's SQLSTATE, or "".
func Code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// stripped is an error without secrets. It still wraps what callers look for: the server's error code, a context that
// ended, a network that cannot be reached, a broken connection, and a server in the wrong mode (read-only, standby).
type stripped struct {
	text   string
	causes []error
}

func (e *stripped) Error() string   { return e.text }
func (e *stripped) Unwrap() []error { return e.causes }

// keptCauses are the sentinel errors that callers look for; none of them holds data.
var keptCauses = []error{
	context.DeadlineExceeded, context.Canceled, io.EOF, io.ErrUnexpectedEOF,
	pgconn.ErrReadOnlyConnection, pgconn.ErrStandbyConnection,
}

// Strip returns an error without the chain of err. It keeps the causes that callers look for. Its text contains no
// secret of the connection string.
func Strip(err error, connection string) error {
	b := &stripped{text: Redact(err.Error(), connection)}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		b.causes = append(b.causes, pg)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		b.causes = append(b.causes, op)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		b.causes = append(b.causes, dns)
	}
	for _, cause := range keptCauses {
		if errors.Is(err, cause) {
			b.causes = append(b.causes, cause)
		}
	}
	return b
}

var (
	userinfo = regexp.MustCompile(`(?i)(postgres(?:ql)?://)[^@\s/]*@`)
	keyvalue = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)`)
)

// Redact replaces everything that may be a secret of the connection string by a placeholder, and makes the text one
// line.
func Redact(text, connection string) string {
	for _, secret := range secrets(connection) {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	text = userinfo.ReplaceAllString(text, "${1}xxxxx@")
	return line(keyvalue.ReplaceAllString(text, "${1}xxxxx"))
}

// line joins the lines of a text, each only once. The error of a failed connect has a line for each attempt, and two
// for each address if TLS is optional. Most of these lines are equal.
func line(text string) string {
	var out []string
next:
	for l := range strings.Lines(strings.TrimSpace(text)) {
		l = strings.TrimSpace(l)
		for _, kept := range out {
			if strings.Contains(kept, l) {
				continue next
			}
		}
		out = append(out, l)
	}
	return strings.ReplaceAll(strings.Join(out, "; "), ":; ", ": ")
}

// secrets lists the passwords in a connection string, in every spelling in which they may be quoted.
func secrets(connection string) []string {
	var out []string
	add := func(s string) {
		if s != "" {
			out = append(out, s, url.QueryEscape(s), url.PathEscape(s))
		}
	}
	if u, err := url.Parse(connection); err == nil {
		password, _ := u.User.Password()
		add(password)
		for _, key := range []string{"password", "sslpassword"} {
			add(u.Query().Get(key))
		}
	}
	if cfg, err := pgconn.ParseConfig(connection); err == nil {
		add(cfg.Password)
	}
	// For a string that does not parse as a whole, take what stands between the first colon of its authority and
	// its last @.
	if _, rest, ok := strings.Cut(connection, "://"); ok {
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			if _, password, ok := strings.Cut(rest[:i], ":"); ok {
				add(password)
			}
		}
	}
	for _, m := range keyvalue.FindAllStringSubmatch(connection, -1) {
		add(strings.Trim(m[2], "'"))
	}
	return out
}
