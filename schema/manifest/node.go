package manifest

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var nodeKind = &Kind{
	Group: "longhorn.io", Versions: longhornVersions, Name: "Node", Definition: "#LonghornNode", shared: true,
	read: func(f *File, m manifest) {
		if m, ok := f.named(m); ok {
			f.define(m, nodesSection, m.name)
		}
	},
	convert: convertNode,
}

// addressAnnotation is the annotation with the address of a node's manager. Longhorn
// has no field for it.
const addressAnnotation = "backing-image-manager/address"

func convertNode(c *converter) {
	c.copy(path("address"), document.Path{"metadata", "annotations", addressAnnotation})
	for _, name := range []string{"tags", "allowScheduling", "evictionRequested"} {
		c.copy(path(name), path("spec").With(name))
	}
	c.sources[pathKey(path("disks"))] = path("spec.disks")
	disks := c.get(path("spec.disks"))
	if disks == nil {
		return
	}
	for _, f := range disks.Fields {
		from, native := path("spec.disks").With(f.Name), path("disks").With(f.Name)
		if c.text(from.With("diskType")) == "block" {
			c.warn(from.With("diskType"), fmt.Sprintf("is block: disk %q is ignored", document.Printable(f.Name)), "only disks of type filesystem can have backing images")
			continue
		}
		c.sources[pathKey(native)] = from
		for _, name := range []string{"path", "tags", "storageReserved", "allowScheduling", "evictionRequested"} {
			c.copy(native.With(name), from.With(name))
		}
	}
}
