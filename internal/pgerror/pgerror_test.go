package pgerror_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/pgerror"
)

// No text contains the password, however the connection string is written, and whether or not it
// parses.
func TestRedact(t *testing.T) {
	t.Parallel()
	for connection, secret := range map[string]string{
		"postgres://u:s3cr3t@host/db":                      "s3cr3t",
		"postgres://u:p%40ss%2Fw@host/db":                  "p%40ss%2Fw",
		"postgres://host/db?password=s3cr3t&sslpassword=k": "s3cr3t",
		"postgres://u:s3cr3t@host:port:/db":                "s3cr3t",
		"postgres://u:s3@cr3t@host/%zz":                    "s3@cr3t",
		"host=h user=u password='s3 cr3t' dbname=d":        "s3 cr3t",
		"host=h user=u password='p@ss/w' dbname=d":         "p%40ss%2Fw",
		"host=h user=u sslpassword=s3cr3t dbname=d":        "s3cr3t",
	} {
		got := pgerror.Redact("cannot parse `"+connection+"`; it was "+secret, connection)
		if strings.Contains(got, secret) || !strings.HasSuffix(got, "it was xxxxx") {
			t.Errorf("%s: %q is left in %q", connection, secret, got)
		}
		if !strings.Contains(got, "cannot parse") {
			t.Errorf("%s: all is gone: %q", connection, got)
		}
	}
}

// chatty is an error that would reveal its configuration.
type chatty struct{ error }

func (c chatty) Unwrap() error { return c.error }

// A stripped error still wraps what callers may ask for, and nothing else.
func TestStrip(t *testing.T) {
	t.Parallel()
	server := &pgconn.PgError{Code: "42501", Message: "no"}
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	err := pgerror.Strip(chatty{fmt.Errorf("as s3cr3t: %w", errors.Join(server, dial, context.Canceled))}, "postgres://u:s3cr3t@h/d")
	if pgerror.Code(err) != "42501" || !errors.Is(err, dial) || !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v answers otherwise", err)
	}
	if errors.As(err, new(chatty)) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("%q has its chain or its secret", err)
	}
}

// The lines of a driver's error become one, without repetitions. A secret that spans two lines is
// still found.
func TestRedactMakesOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"no\ttabs":       "no\ttabs",
		"refused\n":      "refused",
		"a:\n\tx\n\tx":   "a: x",
		"a:\n\tx\n\ty\n": "a: x; y",
		"a:\n\thostname resolving error: lookup h: no such host\n\tlookup h: no such host": "a: hostname resolving error: lookup h: no such host",
		"\n":                               "",
		"a:\n\tto s3\ncr3t\n\tto s3\ncr3t": "a: to xxxxx",
	} {
		if got := pgerror.Redact(text, "postgres://u:s3%0Acr3t@h/d"); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
