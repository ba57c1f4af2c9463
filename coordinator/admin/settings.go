package admin

import "context"

// settingsOperations lists the call about settings.
func settingsOperations() []operation {
	return []operation{get("listSettings", "/settings", "The settings of the node that answers, with where each comes from", (*API).settings)}
}

// Setting is one effective setting of a program, without secrets.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // where the value comes from
	// Overrides lists weaker origins with other values, the strongest first.
	Overrides []Override `json:"overrides,omitempty"`
	Note      string     `json:"note,omitempty"` // why it has no effect
}

// Override is a value of a setting that a stronger one has replaced.
type Override struct {
	Layer string `json:"layer"`          // default, file, env or flag
	Name  string `json:"name,omitempty"` // where in that layer, such as emitd.yaml:9
	Value string `json:"value"`
}

type settingsIn struct{}

// settingsAnswer is the settings.
type settingsAnswer struct {
	Settings []Setting `json:"settings"`
}

func (a *API) settings(context.Context, *settingsIn) (*settingsAnswer, error) {
	out := &settingsAnswer{Settings: []Setting{}}
	if a.cfg.Settings != nil {
		out.Settings = append(out.Settings, a.cfg.Settings()...)
	}
	return out, nil
}
