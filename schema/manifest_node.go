package schema

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var nodeForm = &form{
	group: "longhorn.io", versions: longhornVersions, kind: "Node", definition: "#LonghornNode", common: true,
	read:      func(c *content, m manifest) { c.add(m, key{nodesSection, m.name}) },
	translate: translateNode,
}

// addressAnnotation has where the manager of a node answers, for which Longhorn's
// form has no field.
const addressAnnotation = "backing-image-manager/address"

func translateNode(tr *translation) {
	tr.carry(at("address"), document.Path{"metadata", "annotations", addressAnnotation})
	for _, name := range []string{"tags", "allowScheduling", "evictionRequested"} {
		tr.carry(at(name), at("spec").With(name))
	}
	tr.from[pathKey(at("disks"))] = at("spec.disks")
	disks := tr.get(at("spec.disks"))
	if disks == nil {
		return
	}
	for _, f := range disks.Fields {
		from, native := at("spec.disks").With(f.Name), at("disks").With(f.Name)
		if kind := tr.text(from.With("diskType")); kind == "block" {
			tr.warn(from.With("diskType"), fmt.Sprintf("is block: disk %q is left out", document.Printable(f.Name)), "backing images are kept on disks of type filesystem")
			continue
		}
		tr.from[pathKey(native)] = from
		for _, name := range []string{"path", "tags", "storageReserved", "allowScheduling", "evictionRequested"} {
			tr.carry(native.With(name), from.With(name))
		}
	}
}
