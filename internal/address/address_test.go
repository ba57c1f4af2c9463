package address_test

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/address"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"postgres://u:p@h/db":                      nil,
		"postgres://u:p%40%2F%23@h1:1,h2:2/db?x=y": nil,
		"postgres://h/db":                          nil,
		"postgres:///db?host=/var/run/postgresql":  nil,
		"postgres://u:p@[::1]:5432/db":             nil,
		"postgres://u:p@ss@h/db":                   address.ErrUnencodedLogin,
		"https://example.com/@someone":             nil,
		"https://u:p@example.com/@someone?to=a@b":  nil,
		"amqp://u:p@h:5672/%2f":                    nil,
		"s3://bucket/prefix@x?region=eu":           nil,
		"postgres://u:9/secretTail1@db/x":          address.ErrUnencodedLogin,
		"postgres://u:9?secretTail1@db/x":          address.ErrUnencodedLogin,
		"postgres://u:9#secretTail1@db/x":          address.ErrUnencodedLogin,
		"postgres://u:9/secret":                    nil, // indistinguishable from a database
		"postgres://u:secret/9@db/x":               address.ErrMalformed,
		"postgres://u:99999":                       address.ErrUnencodedLogin,
		"postgres://u:p@h/db#x":                    address.ErrUnencodedLogin,
		"postgres:u:secret@h/db":                   address.ErrUnencodedLogin,
		"nats://to/ken@h:4222":                     address.ErrUnencodedLogin,
		"https://u:9/secret@h/hook":                address.ErrUnencodedLogin,
		"postgres://u:%zz@h/db":                    address.ErrMalformed,
		"postgres://s3cr3t!$@h/db\x00":             address.ErrMalformed,
		"postgres://u:1@se(cret)/db":               address.ErrUnencodedLogin,
	} {
		if _, err := address.URL(text); err != want { //nolint:errorlint // the very one
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

func TestOthers(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"nats://u:p@a:1,nats://b:2": true, "a:1,b:2": true, "token@a": true, "nats://u:1,tail@a": false, "nats://u:p,a@h": false,
	} {
		if err := address.List(text); (err == nil) != good {
			t.Errorf("list %q: %v", text, err)
		}
	}
	for text, good := range map[string]bool{
		"h:9092": true, "h": true, "[::1]:9": true, "": false, "u:p@h:1": false, "kafka://h:1": false, "h:1/x": false, "h:99999": false, "h:x": false,
	} {
		if err := address.HostPort(text); (err == nil) != good {
			t.Errorf("host:port %q: %v", text, err)
		}
	}
}

// FuzzAddresses: no error contains a part of an address, and no accepted address has a secret in
// its host or path.
func FuzzAddresses(f *testing.F) {
	f.Add("postgres://", "u", "p", "h/db")
	f.Add("nats://", "", "9/x", "h:1,nats://i")
	f.Add("https://", "u", "1#", "h")
	f.Add("host=h user=", "u", " password='", "'")
	f.Fuzz(func(t *testing.T, before, user, password, rest string) {
		const planted = "S3CRETS3CRET"
		for _, text := range []string{before + user + ":" + password + planted + "@" + rest, before + user + ":" + planted + password + "@" + rest} {
			u, err := address.URL(text)
			for _, err := range []error{err, address.List(text), address.HostPort(text)} {
				if err != nil && strings.Contains(err.Error(), "CRET") {
					t.Errorf("%q: %v", text, err)
				}
			}
			if strings.HasPrefix(text, "postgres://") && err == nil && strings.Contains(u.Host+u.Path+u.Fragment, planted) &&
				!strings.ContainsAny(before[len("postgres://"):]+user, "@/?#") {
				t.Errorf("%q: taken, with the secret in %q", text, u.Host+u.Path)
			}
		}
	})
}
