package access

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRoles: every role × every need. Operate includes read, and admin includes all.
func TestRoles(t *testing.T) {
	t.Parallel()
	includes := map[Role][]Role{
		Read: {Read}, Produce: {Produce}, Consume: {Consume}, Operate: {Operate, Read}, Admin: Roles(),
	}
	for _, has := range Roles() {
		for _, need := range Roles() {
			if got, want := (Grant{Role: has}).Allows(Need{Role: need}), slices.Contains(includes[has], need); got != want {
				t.Errorf("%s allows %s: %v", has, need, got)
			}
		}
	}
	if (Grant{}).Allows(Need{Role: Read}) || (Grant{Role: Read}).Allows(Need{Role: "all"}) || (&Caller{}).Allows(Need{Role: Read}) {
		t.Error("no role allows something")
	}
}

// TestLimits: a grant that is limited allows nothing beyond its patterns, and nothing about the whole cluster.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grant string
		need  Need
		want  bool
	}{
		{"read", Need{Role: Read, Queue: "mail"}, true},
		{"read@queue=mail", Need{Role: Read, Queue: "mail"}, true},
		{"read@queue=mail", Need{Role: Read, Queue: "mail2"}, false},
		{"read@queue=mail", Need{Role: Read, Queue: "Mail"}, false},
		{"read@queue=mail", Need{Role: Read}, false},
		{"read@queue=mail", Need{Role: Read, Subscription: "mail"}, false},
		{"read@queue=mail", Need{Role: Operate, Queue: "mail"}, false},
		{"read@queue=mail.*", Need{Role: Read, Queue: "mail.eu"}, true},
		{"read@queue=mail.*", Need{Role: Read, Queue: "mail"}, false},
		{"read@queue=mail.*", Need{Role: Read, Queue: "xmail.eu"}, false},
		{"operate@queue=a@queue=b@subscription=c*", Need{Role: Operate, Queue: "b"}, true},
		{"operate@queue=a@queue=b@subscription=c*", Need{Role: Operate, Queue: "c"}, false},
		{"operate@queue=a@queue=b@subscription=c*", Need{Role: Read, Subscription: "c"}, true},
		{"operate@queue=a@queue=b@subscription=c*", Need{Role: Operate}, false},
		{"admin@queue=*", Need{Role: Produce, Queue: "anything"}, true},
		{"admin@queue=*", Need{Role: Admin}, false},
	} {
		g, err := ParseGrant(c.grant)
		if err != nil || g.String() != c.grant {
			t.Errorf("%s: %s, %v", c.grant, g, err)
		}
		if got := g.Allows(c.need); got != c.want {
			t.Errorf("%s allows %s: %v", c.grant, c.need, got)
		}
	}
}

// TestMalformed: a mistake in a line is an error that names the line, and that does not contain a token.
func TestMalformed(t *testing.T) {
	t.Parallel()
	const secret = "emitd_0123456789abcdef"
	good := Entry{Caller: Caller{Name: "ci", Kind: Token, Grants: Everything()}}
	line := good.of(secret).Line()
	named, sums, _ := strings.Cut(line, " sha256=")
	for _, c := range []struct{ line, want string }{
		{"short", "at least 16"},
		{secret + " " + secret, "one token without spaces"},
		{strings.Replace(line, "admin", "root", 1), "want one of read, produce"},
		{strings.Replace(line, "admin", "", 1), "want one of read, produce"},
		{strings.Replace(line, "admin", "read@queue=", 1), "malformed"},
		{strings.Replace(line, "admin", "read@queue=a*b", 1), "malformed"},
		{strings.Replace(line, "admin", "read@queue=**", 1), "malformed"},
		{strings.Replace(line, "admin", "read@topic=a", 1), "want queue=PATTERN"},
		{strings.Replace(line, "admin", "read@queue="+strings.Repeat("a", 200), 1), "malformed"},
		{strings.Replace(line, "name=ci", "name=", 1), "name is"},
		{strings.Replace(line, "name=ci", "", 1), "no name="},
		{strings.Replace(line, "sha256=", "sha256=x", 1), "sha256 is not 32 bytes"},
		{strings.Replace(line, "session=", "sesion=", 1), "no field"},
		{line + " expires=tomorrow", "want a time"},
		{line + " name=ci", "each once"},
		{named, "has sha256="},
		{"user name=alice roles=read sha256=" + sums, "and nothing else"},
		{line + "\n" + line, "2: there is another token"},
	} {
		_, err := Parse(c.line)
		if err == nil || !strings.Contains(err.Error(), c.want) || err.Error()[1] != ':' || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %s", c.line, err, c.want)
		}
	}
}

// of returns the entry with the sums of a token.
func (e Entry) of(token string) Entry {
	made := EntryOf(token)
	made.Caller, made.Created, made.Expires = e.Caller, e.Created, e.Expires
	return made
}

// TestFile: the lines of a file are what Line wrote, and the file does not have the token.
func TestFile(t *testing.T) {
	t.Parallel()
	const token, bare = "emitd_0123456789abcdef", "a-token-as-it-is-sent"
	at := time.Date(2030, 1, 31, 9, 0, 0, 0, time.UTC)
	g, err := ParseGrant("produce@queue=mail.*")
	if err != nil {
		t.Fatal(err)
	}
	e := Entry{Caller: Caller{Name: "ci", Kind: Token, Grants: []Grant{g, {Role: Read}}}, Created: at, Expires: at.Add(time.Hour)}.of(token)
	text := "# who may do what\n" + e.Line() + "\n\n" + bare + "\nuser name=* roles=read\ncertificate name=ops.example.org roles=operate\n"
	if strings.Contains(text, token) {
		t.Error("the line has the token")
	}
	got, err := Parse(text)
	if err != nil || len(got) != 4 || got[0].Line() != e.Line() {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Expired(at) || !got[0].Expired(at.Add(time.Hour)) || got[2].Expired(at.Add(1e6*time.Hour)) {
		t.Error("an entry is valid before its end, and not after it")
	}
	if got[1].Roles() != "admin" || got[1].Sum != EntryOf(bare).Sum || got[2].Name != "*" || got[3].Kind != Certificate {
		t.Errorf("%+v", got)
	}
}

// TestSession: a session belongs to one token, and nothing of it can be changed.
func TestSession(t *testing.T) {
	t.Parallel()
	const token = "emitd_0123456789abcdef"
	mine, other := EntryOf(token), EntryOf(token+"x")
	until := time.Unix(1_900_000_000, 0)
	text := NewSession(token, until)
	s, ok := ParseSession(text)
	if !ok || !s.Of(&mine) || s.Of(&other) || !s.Until.Equal(until) {
		t.Fatalf("%v %+v", ok, s)
	}
	other.Sum = mine.Sum // another key
	if s.Of(&other) || s.Of(&Entry{}) {
		t.Error("a session of another key is valid")
	}
	for i := len(sessionPrefix); i < len(text); i++ {
		b := []byte(text)
		if b[i]++; b[i] == 'A'-1 || b[i] == 'z'+1 {
			b[i] = 'A'
		}
		if s, ok := ParseSession(string(b)); ok && s.Of(&mine) {
			t.Fatalf("the session is valid after a change at %d", i)
		}
	}
	for _, bad := range []string{"", token, sessionPrefix, text[1:], text[:len(text)-1], text + "A"} {
		if _, ok := ParseSession(bad); ok {
			t.Errorf("%q is a session", bad)
		}
	}
}
