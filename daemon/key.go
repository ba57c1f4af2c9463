package daemon

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxKey is the length of the longest key of a unit, in bytes.
const MaxKey = 256

// ValidateKey reports why a text cannot name a unit of a keyed daemon, or nil. A key has 1 to MaxKey bytes of UTF-8. It may
// contain letters, digits, punctuation, symbols and spaces, but no control characters, and no space at its ends.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key of a unit is empty; use a name such as the tenant's")
	case len(key) > MaxKey:
		return fmt.Errorf("the key %.20q… has %d bytes, the limit is %d; use a hash or an ID of what it names", key[:40], len(key), MaxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("the key %q is not valid UTF-8", key)
	case strings.TrimSpace(key) != key:
		return fmt.Errorf("the key %q begins or ends with a space", key)
	}
	if i := strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Errorf("the key %q has a character at byte %d that cannot be printed; letters, digits, punctuation, symbols and spaces are allowed", key, i)
	}
	return nil
}
