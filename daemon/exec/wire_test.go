package exec

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestsSurviveTheWire(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 20), 1, 5)
		r := request{
			Verb: verbStart, ID: rapid.Uint64Min(1).Draw(t, "id"), Deadline: instant(rapid.Int64().Draw(t, "deadline")),
			Command: &program{
				Path: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "path"), Args: texts.Draw(t, "args"), Env: texts.Draw(t, "env"),
			},
		}
		text, err := line(r)
		if err != nil || bytes.Count(text, []byte("\n")) != 1 {
			t.Fatalf("%q, %v", text, err)
		}
		if got, err := parseRequest(text[:len(text)-1]); err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%q is parsed as %+v, %v", text, got, err)
		}
	})
}

func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "start", "[]", `{"verb":"start","id":1}`, `{"verb":"start","id":1,"command":{"path":"eA==","args":[]}}`,
		`{"verb":"extend","id":1}`, `{"verb":"extend","run":1}`, `{"verb":"watch","id":1,"run":1}`,
		`{"verb":"signal","id":1,"run":1}`, `{"verb":"signal","id":1,"run":1,"signal":19}`, `{"verb":"extend","id":-1,"run":1}`,
	} {
		if r, err := parseRequest([]byte(text)); err == nil {
			t.Errorf("%q is parsed as %+v", text, r)
		}
	}
	if _, err := line(request{Command: &program{Path: make([]byte, maxLine)}}); err == nil {
		t.Error("a line that the guardian does not take is made")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"verb":"extend","id":1,"run":2,"deadline":99}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parseRequest(text); err == nil && (r.ID == 0 || r.Verb == "") {
			t.Errorf("%q is parsed as %+v", text, r)
		}
	})
}
