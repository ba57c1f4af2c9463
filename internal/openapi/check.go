package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Document is a document, as far as answers are compared with it.
type Document struct {
	Paths      map[string]map[string]Operation `json:"paths"`
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`
}

// Operation is a call of the document.
type Operation struct {
	OperationID string              `json:"operationId"`
	Parameters  []Parameter         `json:"parameters"`
	RequestBody *Content            `json:"requestBody"`
	Responses   map[string]*Content `json:"responses"`
}

// Parameter is a parameter of a call.
type Parameter struct {
	Name string `json:"name"`
	In   string `json:"in"`
}

// Content has the bodies of a request or an answer, by media type.
type Content struct {
	Content map[string]struct {
		Schema   map[string]any            `json:"schema"`
		Messages map[string]map[string]any `json:"x-messages"`
	} `json:"content"`
}

// Read decodes a document.
func Read(text []byte) (*Document, error) {
	d := new(Document)
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	return d, nil
}

// Response returns what the document has about an answer with this status and media type.
func (o *Operation) Response(status int, kind string) (schema map[string]any, messages map[string]map[string]any, ok bool) {
	response := o.Responses[fmt.Sprint(status)]
	if response == nil && status >= 400 {
		response = o.Responses["default"]
	}
	if response == nil {
		return nil, nil, false
	}
	content, ok := response.Content[kind]
	return content.Schema, content.Messages, ok
}

// Invalid returns what in a value differs from the schema, "" if nothing does. A property that the schema does not have
// differs, too.
func (d *Document) Invalid(schema map[string]any, v any, where string) string {
	if len(schema) == 0 { // any value
		return ""
	}
	if ref, ok := schema["$ref"].(string); ok {
		return d.Invalid(d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")], v, where)
	}
	if choices, ok := schema["anyOf"].([]any); ok {
		wrong := ""
		for _, s := range choices {
			if wrong = d.Invalid(s.(map[string]any), v, where); wrong == "" {
				return ""
			}
		}
		return wrong
	}
	if allowed := kindsOf(schema["type"]); len(allowed) > 0 && !slices.Contains(allowed, kindOf(v)) && (kindOf(v) != "integer" || !slices.Contains(allowed, "number")) {
		return fmt.Sprintf("%s is %v, want %v", where, v, allowed)
	}
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if wrong := d.Invalid(schema["items"].(map[string]any), e, fmt.Sprintf("%s[%d]", where, i)); wrong != "" {
				return wrong
			}
		}
	case map[string]any:
		return d.invalidObject(schema, v, where)
	}
	return ""
}

func (d *Document) invalidObject(schema, v map[string]any, where string) string {
	if len(schema) == 0 || len(schema) == 1 && schema["description"] != nil { // any value
		return ""
	}
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := v[name.(string)]; !ok {
			return fmt.Sprintf("%s has no %v", where, name)
		}
	}
	for name, e := range v {
		s, ok := properties[name].(map[string]any)
		if !ok {
			s, ok = schema["additionalProperties"].(map[string]any)
		}
		if !ok {
			return fmt.Sprintf("%s has %s, which is not in the document", where, name)
		}
		if wrong := d.Invalid(s, e, where+"."+name); wrong != "" {
			return wrong
		}
	}
	return ""
}

func kindsOf(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			out = append(out, e.(string))
		}
		return out
	}
	return nil
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case []any:
		return "array"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}
