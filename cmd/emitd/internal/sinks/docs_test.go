package sinks

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestEverySettingIsDocumented checks that the how-to's section about each kind has all of its settings,
// and no others.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "how-to", "outbox-sinks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range Kinds() {
		empty, _ := Settings(kind)
		tags := tagsOf(reflect.TypeOf(empty).Elem())
		section := sectionOf(string(page), kind)
		if section == "" {
			t.Errorf("the page has no section for %s", kind)
		}
		for tag := range tags {
			if !strings.Contains(section, "`"+tag+"`") {
				t.Errorf("%s.%s is not documented", kind, tag)
			}
		}
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(section, -1) {
			if other := regexp.MustCompile(`\((\w+)\)`).FindStringSubmatch(row[1]); other != nil && other[1] != kind {
				continue // of the other kind in this section
			}
			for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
				if !tags[name[1]] {
					t.Errorf("%s has no setting %s, which the page names", kind, name[1])
				}
			}
		}
	}
}

// tagsOf returns the names of the settings.
func tagsOf(typ reflect.Type) map[string]bool {
	tags := map[string]bool{}
	for i := range typ.NumField() {
		if tag := typ.Field(i).Tag.Get("yaml"); tag != "-" {
			tags[tag] = true
		}
	}
	return tags
}

// sectionOf returns the text below the heading that names the kind.
func sectionOf(page, kind string) string {
	for _, section := range strings.Split(page, "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		for _, name := range strings.Split(heading, " and ") {
			if name == kind {
				return text
			}
		}
	}
	return ""
}
