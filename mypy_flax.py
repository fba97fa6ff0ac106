"""A mypy plugin: what `flax.struct.dataclass` makes has a method `replace`, which flax does not declare."""

from collections.abc import Callable

from mypy.nodes import ARG_STAR2, Argument, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.plugins.dataclasses import dataclass_class_maker_callback
from mypy.types import AnyType, TypeOfAny
from mypy.typevars import fill_typevars


class FlaxPlugin(Plugin):
    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return add_replace if fullname == "flax.struct.dataclass" else None


def add_replace(context: ClassDefContext) -> bool:
    """A dataclass like any other, and `replace(**changes) -> Self`."""
    done = dataclass_class_maker_callback(context)
    changes = Argument(Var("changes"), AnyType(TypeOfAny.explicit), None, ARG_STAR2)
    add_method_to_class(context.api, context.cls, "replace", [changes], fill_typevars(context.cls.info))
    return done


def plugin(version: str) -> type[Plugin]:
    return FlaxPlugin
