package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/reference"
)

func TestReference(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	def := reflect.ValueOf(Defaults("default"))
	b.WriteString("| key | type | default | what it is |\n|---|---|---|---|\n")
	for _, k := range Keys() {
		text := showPath(k.Path, def.FieldByIndex(k.index))
		for _, profile := range lease.Profiles()[1:] {
			value := reflect.ValueOf(Defaults(profile)).FieldByIndex(k.index)
			if other := showPath(k.Path, value); other != showPath(k.Path, def.FieldByIndex(k.index)) && k.Path != "profile" {
				text += ", " + profile + ": " + other
			}
		}
		help := k.Help
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Path, k.Type, reference.Cell(text), reference.Cell(help))
	}
	for _, list := range []string{execPath, subscriptionPath} {
		fmt.Fprintf(&b, "\nEach entry of `%s`:\n\n| key | type | what it is |\n|---|---|---|\n", list)
		for _, k := range ItemKeys(list) {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Path, k.Type, reference.Cell(k.Help))
		}
	}
	reference.Check(t, page, b.String(), *update)
}

const page = "../../../../docs/reference/config.md"

// TestBuiltInDaemonsAreDocumented checks that each built-in daemon has a row below the settings, by its
// ID or that of its kind.
func TestBuiltInDaemonsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range BuiltIn {
		if !strings.Contains(string(text), "\n| `"+id+"` |") && !strings.Contains(string(text), "\n| `"+id+"/<") {
			t.Errorf("%s has no row for %s", page, id)
		}
	}
}
