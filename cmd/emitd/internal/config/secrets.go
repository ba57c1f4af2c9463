package config

import (
	"regexp"
	"strings"
)

// A file with a syntax error has no structure by which to find secrets, and errors show its source. So
// secrets are found in the text. After a key that may hold a secret, the rest of the line is not shown,
// nor are lines that belong to the key by their indentation. Their content is replaced wherever else it
// appears.

// mayHold matches a key that may hold a secret, up to its colon.
var mayHold = regexp.MustCompile(`(?i)[\w.-]*(?:url|uri|dsn|secret|token|passw|passphrase|header|env|auth|bearer|credential|key)[\w.-]*["']?\s*[:=]`)

// isAddress matches a key whose value is an address. Only the login in an address is secret.
var isAddress = regexp.MustCompile(`(?i)(?:url|uri|dsn)[\w.-]*["']?\s*[:=]$`)

// ofFile matches a key that names a file.
var ofFile = regexp.MustCompile(`(?i)_file["']?\s*[:=]$`)

// findSecrets records the secrets in the document's lines, and the column from which each line may not be
// shown.
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
			open, list = unbalanced(line), !strings.HasPrefix(body, "-") // a list may be indented like its key
		} else if strings.Contains(line, "://") {
			d.collect(line, true)
		}
	}
}

// secretFrom returns the column of the value of the line's first key that may hold a secret, or -1.
func secretFrom(line string) int {
	for _, at := range mayHold.FindAllStringIndex(line, -1) {
		if !ofFile.MatchString(line[:at[1]]) {
			return at[1]
		}
	}
	return -1
}

// unbalanced reports whether quotes or brackets probably continue in the next line.
func unbalanced(line string) bool {
	return strings.Count(line, `"`)%2 == 1 || strings.Count(line, "'")%2 == 1 ||
		strings.Count(line, "{")+strings.Count(line, "[") != strings.Count(line, "}")+strings.Count(line, "]")
}

// collect records the words of a text as secrets; of an address only the login, whatever characters it
// has.
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
