package access

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Entry is a line of the access file.
type Entry struct {
	Caller
	Sum              [sha256.Size]byte // of a token
	Session          ed25519.PublicKey // verifies the sessions of a token
	Created, Expires time.Time         // zero: unknown, never
}

// ShortestToken is the least length of a token that the file has as it is sent, to keep out guessable words.
const ShortestToken = 16

// longestName bounds the name of a caller in bytes. It is stored in the history.
const longestName = 128

// Parse reads an access file. The error begins with the number of the line.
func Parse(text string) ([]Entry, error) {
	var out []Entry
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, err := ParseLine(line)
		if err == nil && e.Name != "" && slices.ContainsFunc(out, func(o Entry) bool { return o.Kind == e.Kind && o.Name == e.Name }) {
			err = fmt.Errorf("there is another %s with the name %s", e.Kind, e.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// ParseLine reads a line that is neither empty nor a comment. Its errors do not contain tokens.
func ParseLine(line string) (Entry, error) {
	words := strings.Fields(line)
	kind := Kind(words[0])
	switch {
	case len(words) == 1 && len(line) >= ShortestToken:
		return plain(line), nil
	case len(words) == 1:
		return Entry{}, fmt.Errorf("a token is at least %d characters without spaces", ShortestToken)
	case kind != Token && kind != Certificate && kind != User:
		return Entry{}, errors.New("a line is one token without spaces, or begins with token, certificate or user")
	}
	e := Entry{Caller: Caller{Kind: kind}}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		field, value, ok := strings.Cut(word, "=")
		if !ok || seen[field] {
			return e, fmt.Errorf("a line of kind %s has fields such as name=…, each once", kind)
		}
		seen[field] = true
		if err := e.set(field, value); err != nil {
			return e, err
		}
	}
	for _, field := range []string{"name", "roles"} {
		if !seen[field] {
			return e, fmt.Errorf("the %s has no %s=", kind, field)
		}
	}
	if (kind == Token) != (seen["sha256"] && seen["session"]) {
		return e, errors.New("a token, and nothing else, has sha256= and session=; emitd token new writes such a line")
	}
	return e, nil
}

// plain returns the entry of a token that is in the file as it is sent.
func plain(token string) Entry {
	e := EntryOf(token)
	e.Grants = Everything()
	return e
}

// EntryOf returns the entry of a token, without a name and grants.
func EntryOf(token string) Entry {
	return Entry{Caller: Caller{Kind: Token}, Sum: sha256.Sum256([]byte(token)), Session: sessionKey(token).Public().(ed25519.PublicKey)}
}

// set parses a field of a line.
func (e *Entry) set(field, value string) (err error) {
	switch field {
	case "name":
		e.Name = value
		if value != "*" || e.Kind != User {
			err = CheckName(value)
		}
	case "roles":
		for text := range strings.SplitSeq(value, ",") {
			g, err := ParseGrant(text)
			if err != nil {
				return err
			}
			e.Grants = append(e.Grants, g)
		}
	case "sha256":
		err = decodeInto(e.Sum[:], field, value)
	case "session":
		e.Session = make(ed25519.PublicKey, ed25519.PublicKeySize)
		err = decodeInto(e.Session, field, value)
	case "created", "expires":
		var at time.Time
		if at, err = time.Parse(time.RFC3339, value); err != nil {
			return fmt.Errorf("%s is %.40q, want a time such as 2030-01-31T09:00:00Z", field, value)
		}
		if field == "created" {
			e.Created = at
		} else {
			e.Expires = at
		}
	default:
		err = fmt.Errorf("there is no field %.40q", field)
	}
	return err
}

// CheckName refuses a name of a caller that is malformed.
func CheckName(name string) error {
	if name == "" || len(name) > longestName || strings.ContainsFunc(name, func(r rune) bool { return notInName(r) && r != '@' }) {
		return fmt.Errorf("name is %.140q, want 1 to %d letters, digits and ._:/@-", name, longestName)
	}
	return nil
}

func decodeInto(to []byte, field, value string) error {
	b, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil || len(b) != len(to) {
		return fmt.Errorf("%s is not %d bytes in base64url", field, len(to))
	}
	copy(to, b)
	return nil
}

// Line returns the line of a named entry. It is the inverse of ParseLine.
func (e Entry) Line() string {
	words := []string{string(e.Kind), "name=" + e.Name, "roles=" + e.Roles()}
	if e.Kind == Token {
		words = append(words, "sha256="+base64.RawURLEncoding.EncodeToString(e.Sum[:]), "session="+base64.RawURLEncoding.EncodeToString(e.Session))
	}
	if !e.Created.IsZero() {
		words = append(words, "created="+e.Created.UTC().Format(time.RFC3339))
	}
	if !e.Expires.IsZero() {
		words = append(words, "expires="+e.Expires.UTC().Format(time.RFC3339))
	}
	return strings.Join(words, " ")
}

// Roles returns the grants as the file has them.
func (c Caller) Roles() string {
	var out []string
	for _, g := range c.Grants {
		out = append(out, g.String())
	}
	return strings.Join(out, ",")
}

// Expired reports whether the entry is no longer valid.
func (e Entry) Expired(now time.Time) bool { return !e.Expires.IsZero() && !now.Before(e.Expires) }
