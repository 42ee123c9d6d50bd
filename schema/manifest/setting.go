package manifest

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var settingKind = &Kind{
	Group: "longhorn.io", Versions: longhornVersions, Name: "Setting", Definition: "#Setting", shared: true,
	read:    readSetting,
	convert: convertSetting,
}

// settings are the settings of Longhorn that the native form has too, in the same units.
var settings = []parameter{
	{"backing-image-cleanup-wait-interval", "cleanupWaitInterval"},
	{"backing-image-recovery-wait-interval", "recoveryWaitInterval"},
	{"concurrent-backing-image-replenish-per-node-limit", "concurrentReplenishPerNodeLimit"},
	{"default-min-number-of-backing-image-copies", "minNumberOfCopies"},
}

func readSetting(f *File, m manifest) {
	m, ok := f.named(m)
	if !ok {
		return
	}
	for _, s := range settings {
		if m.name == s.longhorn {
			f.define(m, settingsSection, s.native)
			return
		}
	}
	// A setting with a misspelled name would have its default, which may delete copies earlier.
	for _, s := range settings {
		if document.Similar(m.name, s.longhorn) {
			f.AddProblem(m.pos, namePath, fmt.Sprintf("unknown setting %q", document.Printable(m.name)), fmt.Sprintf("did you mean %q?", s.longhorn))
			return
		}
	}
	f.Skip(m.doc, "is not about backing images")
}

func convertSetting(c *converter) {
	i := slices.IndexFunc(settings, func(s parameter) bool { return s.longhorn == c.text(namePath) })
	c.copyNumber(document.Path{settings[i].native}, path("value"))
}
