package blob

import (
	"fmt"
	"strings"
)

// CheckKey returns an ErrKey that says what is wrong with the key, or nil. Backends call it first
// in every method.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", ErrKey, len(key), MaxKey)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if err := checkSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

func checkSegment(segment string) error {
	if segment == "" || len(segment) > MaxSegment {
		return fmt.Errorf("%w: a segment has %d bytes, 1 to %d are allowed", ErrKey, len(segment), MaxSegment)
	}
	if segment[0] == '.' || segment[len(segment)-1] == '.' {
		return fmt.Errorf("%w: a segment begins or ends with a dot", ErrKey)
	}
	if i := strings.IndexFunc(segment, notInKey); i >= 0 {
		return fmt.Errorf("%w: %q is not one of a-z A-Z 0-9 . _ -", ErrKey, segment[i:i+1])
	}
	return nil
}

// CheckPrefix returns an ErrKey for text that cannot be the beginning of a key. The empty prefix is
// valid, and so is one that ends in the middle of a segment.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxKey {
		return fmt.Errorf("%w: a prefix has %d bytes, at most %d are allowed", ErrKey, len(prefix), MaxKey)
	}
	if prefix == "" {
		return nil
	}
	// A prefix is valid if one more letter makes it a key: that covers "a/" and "a." alike. The
	// longest prefix must itself be a key.
	if len(prefix) == MaxKey {
		return CheckKey(prefix)
	}
	if err := CheckKey(prefix + "0"); err != nil {
		return CheckKey(prefix)
	}
	return nil
}

func notInKey(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return r != '.' && r != '_' && r != '-'
}

// PageLimit is how many entries a List with this limit returns at most.
func PageLimit(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}
