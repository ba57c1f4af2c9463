package config

import (
	"regexp"
	"strings"
)

// A file that is broken has no structure to find secrets by, and its source is shown in errors. So secrets
// are found in its text: no line of a key that may hold one is shown behind that key, nor a line that
// belongs to it by its indentation; and what stands there is replaced wherever it comes up.

// mayHold finds a key that may hold a secret, up to its colon.
var mayHold = regexp.MustCompile(`(?i)[\w.-]*(?:url|uri|dsn|secret|token|passw|passphrase|header|env|auth|bearer|credential|key)[\w.-]*["']?\s*[:=]`)

// isAddress finds a key whose value is an address: of that only the login is secret.
var isAddress = regexp.MustCompile(`(?i)(?:url|uri|dsn)[\w.-]*["']?\s*[:=]$`)

// ofFile finds a key that names a file.
var ofFile = regexp.MustCompile(`(?i)_file["']?\s*[:=]$`)

// findSecrets notes what is secret in the document's lines, and from where on each may not be shown.
func (d *document) findSecrets() {
	d.hidden = make([]int, len(d.lines))
	within, list, address, open := -1, false, false, false
	for i, line := range d.lines {
		body := strings.TrimLeft(line, " \t")
		indent := len(line) - len(body)
		belongs := within >= 0 && (open || body == "" || indent > within || indent == within && list && strings.HasPrefix(body, "-"))
		d.hidden[i] = len(line)
		if belongs {
			d.hidden[i] = indent
			d.collect(body, address)
			open = open || unbalanced(body)
			continue
		}
		within = -1
		if at := secretFrom(line); at >= 0 {
			d.hidden[i], within, address = at, indent, isAddress.MatchString(strings.TrimSpace(line[:at]))
			d.collect(line[at:], address)
			open, list = unbalanced(line), !strings.HasPrefix(body, "-") // a list may stand as far left as its key
		} else if strings.Contains(line, "://") {
			d.collect(line, true)
		}
	}
}

// secretFrom returns where the value of the line's first key begins that may hold a secret, or -1.
func secretFrom(line string) int {
	for _, at := range mayHold.FindAllStringIndex(line, -1) {
		if !ofFile.MatchString(line[:at[1]]) {
			return at[1]
		}
	}
	return -1
}

// unbalanced reports whether quotes or brackets go on in the next line, as far as can be told.
func unbalanced(line string) bool {
	return strings.Count(line, `"`)%2 == 1 || strings.Count(line, "'")%2 == 1 ||
		strings.Count(line, "{")+strings.Count(line, "[") != strings.Count(line, "}")+strings.Count(line, "]")
}

// collect notes the words of a text; of an address the login, whatever characters it has.
func (d *document) collect(text string, address bool) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`,[]{}"'`, r) }) {
		if _, rest, is := strings.Cut(word, "://"); is {
			login, _, has := cutLast(rest, "@")
			if !has {
				continue
			}
			for _, part := range append(strings.FieldsFunc(login, func(r rune) bool { return strings.ContainsRune(":/@?#", r) })[min(1, len(login)):], login) {
				d.secret(part)
			}
			continue
		}
		if !address && !strings.HasSuffix(word, ":") {
			d.secret(word)
		}
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func (d *document) secret(text string) {
	if len(text) >= shortestSecret {
		d.secrets = append(d.secrets, text)
	}
}
