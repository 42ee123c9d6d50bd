package schema

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var settingForm = &form{
	group: "longhorn.io", versions: longhornVersions, kind: "Setting", definition: "#Setting", common: true,
	read: readSetting,
	translate: func(tr *translation) {
		native := longhornSettings[longhornSetting(tr.text(at("metadata.name")))].native
		tr.number(document.Path{native}, at("value"))
	},
}

// longhornSettings are those of Longhorn's that we have too, in the same units.
var longhornSettings = []parameter{
	{"backing-image-cleanup-wait-interval", "cleanupWaitInterval"},
	{"backing-image-recovery-wait-interval", "recoveryWaitInterval"},
	{"concurrent-backing-image-replenish-per-node-limit", "concurrentReplenishPerNodeLimit"},
	{"default-min-number-of-backing-image-copies", "minNumberOfCopies"},
}

func longhornSetting(name string) int {
	return slices.IndexFunc(longhornSettings, func(s parameter) bool { return s.longhorn == name })
}

func readSetting(c *content, m manifest) {
	if i := longhornSetting(m.name); i >= 0 {
		c.add(m, key{settingsSection, longhornSettings[i].native})
		return
	}
	for _, s := range longhornSettings {
		if document.Similar(m.name, s.longhorn) {
			c.problem(m.pos, document.Path{"metadata", "name"}, fmt.Sprintf("unknown setting %q", document.Printable(m.name)), fmt.Sprintf("did you mean %q?", s.longhorn))
			return
		}
	}
	c.skip(m.doc, "is not about backing images")
}
