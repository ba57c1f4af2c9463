package admin

import (
	"encoding/base64"
	"encoding/json"
	"slices"
)

// paging selects a part of a list.
type paging struct {
	// Limit is the most entries that the answer has.
	Limit int `query:"limit" default:"100" min:"1" max:"1000"`
	// Cursor continues a list: it is the cursor of the answer before. A cursor names an entry and no number of entries, so
	// nothing is left out or listed twice when entries come and go meanwhile.
	Cursor string `query:"cursor"`
}

// position is what a cursor holds: after which entry of which list the next page begins.
type position[K any] struct {
	List  string `json:"l"`
	After K      `json:"a"`
}

// cursor returns the cursor for the entries after key.
func cursor[K any](list string, key K) *string {
	text, err := json.Marshal(position[K]{list, key})
	if err != nil {
		panic("admin: a cursor of " + list + " does not marshal: " + err.Error())
	}
	out := base64.RawURLEncoding.EncodeToString(text)
	return &out
}

// after returns the key in the cursor; ok is false at the beginning of the list.
func after[K any](in paging, list string) (key K, ok bool, err error) {
	if in.Cursor == "" {
		return key, false, nil
	}
	var p position[K]
	text, err := base64.RawURLEncoding.DecodeString(in.Cursor)
	if err != nil || json.Unmarshal(text, &p) != nil || p.List != list {
		return key, false, badCall("the cursor %.100q is not one of this list", in.Cursor)
	}
	return p.After, true, nil
}

// page returns the entries of a sorted list that follow the cursor, and the cursor of the next page; nil at the end.
// compare orders the keys as the list is sorted, and no two entries have the same key.
func page[T, K any](all []T, in paging, list string, key func(*T) K, compare func(a, b K) int) ([]T, *string, error) {
	last, begun, err := after[K](in, list)
	if err != nil {
		return nil, nil, err
	}
	first := 0
	if begun {
		first, _ = slices.BinarySearchFunc(all, last, func(e T, last K) int {
			if compare(key(&e), last) <= 0 {
				return -1
			}
			return 1
		})
	}
	rest := all[first:]
	if len(rest) <= in.Limit {
		return append([]T{}, rest...), nil, nil
	}
	rest = rest[:in.Limit]
	return rest, cursor(list, key(&rest[in.Limit-1])), nil
}

// filtered returns the entries that keep selects, in a new list unless it is all.
func filtered[T any](all []T, keep func(*T) bool) []T {
	first := 0
	for first < len(all) && keep(&all[first]) {
		first++
	}
	if first == len(all) {
		return all
	}
	out := slices.Clone(all[:first])
	for i := first; i < len(all); i++ {
		if keep(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}
