package schema

import "fmt"

var nodeForm = &form{
	group: "longhorn.io", versions: longhornVersions, kind: "Node", definition: "#LonghornNode", common: true,
	read:      func(c *content, m manifest) { c.add(m, key{nodesSection, m.name}) },
	translate: translateNode,
}

// addressAnnotation has where the manager of a node answers, for which Longhorn's
// form has no field.
const addressAnnotation = "backing-image-manager/address"

func translateNode(tr *translation) {
	tr.carry(at("address"), fieldPath{"metadata", "annotations", addressAnnotation})
	for _, name := range []string{"tags", "allowScheduling", "evictionRequested"} {
		tr.carry(at(name), at("spec").with(name))
	}
	tr.from[at("disks").key()] = at("spec.disks")
	disks := tr.get(at("spec.disks"))
	if disks == nil {
		return
	}
	for _, f := range disks.fields {
		from, native := at("spec.disks").with(f.name), at("disks").with(f.name)
		if kind := tr.text(from.with("diskType")); kind == "block" {
			tr.warn(from.with("diskType"), fmt.Sprintf("is block: disk %q is left out", printable(f.name)), "backing images are kept on disks of type filesystem")
			continue
		}
		tr.from[native.key()] = from
		for _, name := range []string{"path", "tags", "storageReserved", "allowScheduling", "evictionRequested"} {
			tr.carry(native.with(name), from.with(name))
		}
	}
}
