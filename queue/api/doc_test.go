package api_test

import (
	"cmp"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

func reference(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/reference/queue-http.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestReferenceHasEveryRoute: the page and the mux list the same paths.
func TestReferenceHasEveryRoute(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|PUT|PATCH|POST|DELETE) [^`]+)`").FindAllStringSubmatch(reference(t), -1) {
		documented = append(documented, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^`(/[a-z0-9.]+QueueService/)`").FindAllStringSubmatch(reference(t), -1) {
		documented = append(documented, m[1])
	}
	served := h.Routes()
	slices.Sort(served)
	slices.Sort(documented)
	if !slices.Equal(served, documented) {
		t.Errorf("served     %q\ndocumented %q", served, documented)
	}
}

// TestReferenceHasEveryField: the page has every field of the bodies and every tag of refusals.
func TestReferenceHasEveryField(t *testing.T) {
	t.Parallel()
	page := reference(t)
	for _, v := range []any{
		wire.Job{},
		wire.Retry{},
		wire.ClaimRequest{},
		wire.Claimed{},
		wire.Settlement{},
		wire.Outcome{},
		wire.JobView{},
		wire.Info{},
		wire.ActRequest{},
		wire.Stats{},
		refusal.Problem{},
		wire.Declaration{},
		wire.Receipt{},
	} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name != "" && !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, `"`+name+`"`) {
				t.Errorf("%v.%s: `%s` is not in the page", typ, typ.Field(i).Name, name)
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (\\d+) \\|").FindAllStringSubmatch(page, -1) {
		if got := refusal.HTTPStatus(queue.Tag(m[1])); m[2] != strconv.Itoa(got) {
			t.Errorf("%s is %d, the page says %s", m[1], got, m[2])
		}
	}
	for _, tag := range refusal.Tags() {
		if !strings.Contains(page, "| `"+string(tag)+"` |") {
			t.Errorf("tag %s is not in the page", tag)
		}
	}
}

// TestReferenceTranscript makes the calls of the page on a fresh server, with a broker behind it.
func TestReferenceTranscript(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(reference(t), "```transcript\n")
	script, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no transcript")
	}
	p := play{h: newLiveAPI(t)}
	var got string
	n := 0
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if sent, ok := strings.CutPrefix(line, "> "); ok {
			parts := append(strings.SplitN(sent, " ", 3), "")
			a, masked := p.send(parts[0], parts[1], parts[2])
			got = "< " + strconv.Itoa(a.status) + " " + masked
			continue
		}
		if n++; got != line {
			t.Errorf("got  %s\npage %s", got, line)
		}
	}
	if n < 5 {
		t.Errorf("only %d answers", n)
	}
}

// TestReferenceBegins: the page's first lines, typed on a fresh server, give a job.
func TestReferenceBegins(t *testing.T) {
	t.Parallel()
	h := newLiveAPI(t)
	curls := regexp.MustCompile(`(?m)^    curl (?:-X (\S+) )?(?:-d '([^']*)' )?http://127\.0\.0\.1:7070(\S+)$`).FindAllStringSubmatch(reference(t), -1)
	if len(curls) < 2 {
		t.Fatalf("the page has %d calls of curl", len(curls))
	}
	for _, c := range curls {
		if a := send(h, cmp.Or(c[1], "POST"), c[3], c[2]); a.status != 200 {
			t.Errorf("%s: %d %s", c[0], a.status, a.body)
		}
	}
}
