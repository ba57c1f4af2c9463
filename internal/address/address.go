// Package address refuses addresses that may contain a secret in the wrong place, before a program
// connects to them, logs them or resolves a name. A password with an unencoded @, /, ? or # ends
// the login early. Its rest then looks like a host, a path or a database, which errors print and
// name servers are asked for. No error of this package contains any part of an address.
package address

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// The errors of an address.
var (
	ErrMalformed      = errors.New("does not parse (special characters in a user or password must be percent-encoded: @ is %40, / is %2F, # is %23, ? is %3F)")
	ErrUnencodedLogin = errors.New("seems to have a part of a login behind its host: percent-encode special characters in a user or password (@ is %40, / is %2F, # is %23, ? is %3F)")
)

// host matches the text between a login and a path: names and numbers, several with commas.
var host = regexp.MustCompile(`^[\pL\pN._,:%\[\]-]*$`)

// URL parses an address that may have a login.
func URL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, ErrMalformed
	}
	_, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, behind := rest[:end], rest[end:]
	login := strings.Contains(authority, "@")
	web := u.Scheme == "http" || u.Scheme == "https" || u.Scheme == "s3" || u.Scheme == "gs"
	switch {
	case !host.MatchString(u.Host) || !port(u.Port()):
		return nil, ErrUnencodedLogin
	case strings.Count(authority, "@") > 1: // parsers differ in which @ ends the login
		return nil, ErrUnencodedLogin
	case u.Opaque != "" && strings.Contains(u.Opaque, "@"):
		return nil, ErrUnencodedLogin
	case !strings.Contains(behind, "@"):
	case web && (login || !strings.Contains(authority, ":")): // a path may contain an @, as in e-mail addresses
	case u.Host != "":
		return nil, ErrUnencodedLogin
	}
	if u.Host != "" && !web && strings.Contains(behind, "#") {
		return nil, ErrUnencodedLogin
	}
	return u, nil
}

func port(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil
}

// List checks several addresses with commas between them. Each may lack its scheme.
func List(text string) error {
	for i, one := range strings.Split(text, ",") {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			if i > 0 && strings.Contains(one, "@") { // the rest of a password that contains a comma
				return ErrUnencodedLogin
			}
			one = "any://" + one
		}
		if _, err := URL(one); err != nil {
			return err
		}
	}
	return nil
}

// HostPort checks an address that cannot have a login: host, or host:port.
func HostPort(text string) error {
	if u, err := url.Parse("any://" + text); err != nil || u.Host != text || !host.MatchString(text) || !port(u.Port()) || text == "" {
		return errors.New("is not host:port")
	}
	return nil
}
