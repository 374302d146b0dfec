package cni

import (
	"strings"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type props = map[string]apiext.JSONSchemaProps

// crd is what a client sees of a definition: names, scope, and the fields that the server keeps.
type crd struct {
	group, version, kind, plural string
	short                        []string
	category                     string
	namespaced, status           bool
	// fields are the top-level ones, spec and status for most. Fields that the original
	// lacks are pruned here too: that is how an older server loses a newer client's field.
	fields  props
	columns []apiext.CustomResourceColumnDefinition
}

func (d crd) name() string { return d.plural + "." + d.group }

func (d crd) object() *apiext.CustomResourceDefinition {
	v := apiext.CustomResourceDefinitionVersion{
		Name: d.version, Served: true, Storage: true,
		Schema:                   &apiext.CustomResourceValidation{OpenAPIV3Schema: &apiext.JSONSchemaProps{Type: "object", Properties: d.fields}},
		AdditionalPrinterColumns: d.columns,
	}
	if d.status {
		v.Subresources = &apiext.CustomResourceSubresources{Status: &apiext.CustomResourceSubresourceStatus{}}
	}
	o := &apiext.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: d.name()},
		Spec: apiext.CustomResourceDefinitionSpec{
			Group: d.group,
			Names: apiext.CustomResourceDefinitionNames{
				Plural: d.plural, Singular: strings.ToLower(d.kind), ShortNames: d.short, Kind: d.kind, ListKind: d.kind + "List",
			},
			Scope:    apiext.ClusterScoped,
			Versions: []apiext.CustomResourceDefinitionVersion{v},
		},
	}
	if d.namespaced {
		o.Spec.Scope = apiext.NamespaceScoped
	}
	if d.category != "" {
		o.Spec.Names.Categories = []string{d.category}
	}
	return o
}

func (d crd) established(o *apiext.CustomResourceDefinition) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == apiext.Established {
			return c.Status == apiext.ConditionTrue
		}
	}
	return false
}

func object(p props, required ...string) apiext.JSONSchemaProps {
	return apiext.JSONSchemaProps{Type: "object", Properties: p, Required: required}
}

func listOf(item apiext.JSONSchemaProps) apiext.JSONSchemaProps {
	return apiext.JSONSchemaProps{Type: "array", Items: &apiext.JSONSchemaPropsOrArray{Schema: &item}}
}

func mapOf(value apiext.JSONSchemaProps) apiext.JSONSchemaProps {
	return apiext.JSONSchemaProps{Type: "object", AdditionalProperties: &apiext.JSONSchemaPropsOrBool{Allows: true, Schema: &value}}
}

func enum(values ...string) apiext.JSONSchemaProps {
	s := apiext.JSONSchemaProps{Type: "string"}
	for _, v := range values {
		s.Enum = append(s.Enum, apiext.JSON{Raw: []byte(`"` + v + `"`)})
	}
	return s
}

func withDefault(s apiext.JSONSchemaProps, raw string) apiext.JSONSchemaProps {
	s.Default = &apiext.JSON{Raw: []byte(raw)}
	return s
}

var (
	text     = apiext.JSONSchemaProps{Type: "string"}
	integer  = apiext.JSONSchemaProps{Type: "integer"}
	boolean  = apiext.JSONSchemaProps{Type: "boolean"}
	dateTime = apiext.JSONSchemaProps{Type: "string", Format: "date-time"}
	// anything is an object whose fields no driver reads.
	anything = apiext.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
)

func column(name, kind, path string) apiext.CustomResourceColumnDefinition {
	return apiext.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path}
}
